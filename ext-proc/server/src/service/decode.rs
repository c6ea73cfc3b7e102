//! Envoy's messages → events of an exchange. Nothing is decided here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest, ProtocolConfiguration};
use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use ext_proc_exchange::{BodyMode, Event, RequestHead, ResponseHead, TenantHeader};

/// Longest request id that is kept, bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Headers that only we may set, beside those with one of [`CONTROL_PREFIXES`].
const CONTROL_HEADERS: [&str; 7] = [
    "x-vllm-priority",
    "x-data-parallel-rank",
    "x-data-parallel-host-port",
    "x-prefiller-host-port",
    "x-prefiller-url",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
];
/// Beginnings of header names that only we may set: our own, the endpoint picker protocol's, llm-d's.
const CONTROL_PREFIXES: [&str; 4] =
    ["x-tokenweir-", "x-gateway-destination-endpoint", "x-gateway-inference-", "x-llm-d-"];

/// Whether a client may not set this header (lower case).
pub(crate) fn is_control_header(name: &str) -> bool {
    CONTROL_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || CONTROL_HEADERS.contains(&name)
}

/// The body mode that Envoy announces in its first message; `None`: one that can't work. An Envoy that announces
/// nothing is taken to be in buffered mode, which is what our manifests say.
pub(crate) fn body_mode(config: Option<&ProtocolConfiguration>) -> Option<BodyMode> {
    match config.map(|config| config.request_body_mode()) {
        None | Some(BodySendMode::Buffered) => Some(BodyMode::Buffered),
        Some(BodySendMode::FullDuplexStreamed) => Some(BodyMode::FullDuplex),
        Some(_) => None,
    }
}

/// What a message means; `None`: nothing that an exchange knows.
pub(crate) fn event(message: ProcessingRequest, tenant_header: &str) -> Option<Event> {
    Some(match message.request? {
        Request::RequestHeaders(headers) => Event::RequestHeaders(request_head(&headers, tenant_header)),
        Request::RequestBody(body) => Event::RequestBody {
            chunk: body.body,
            end: body.end_of_stream || body.end_of_stream_without_message,
        },
        Request::RequestTrailers(_) => Event::RequestTrailers,
        Request::ResponseHeaders(headers) => {
            Event::ResponseHeaders(response_head(&headers, &message.attributes))
        }
        Request::ResponseBody(_) | Request::ResponseTrailers(_) => return None,
    })
}

fn value(header: &HeaderValue) -> Option<&str> {
    if header.raw_value.is_empty() {
        Some(&header.value)
    } else {
        std::str::from_utf8(&header.raw_value).ok()
    }
}

fn list(headers: Option<&HeaderMap>) -> impl Iterator<Item = &HeaderValue> {
    headers.map(|map| map.headers.as_slice()).unwrap_or_default().iter()
}

fn request_head(headers: &HttpHeaders, tenant_header: &str) -> RequestHead {
    let mut head = RequestHead { end: headers.end_of_stream, ..RequestHead::default() };
    for header in list(headers.headers.as_ref()) {
        let text = || value(header).unwrap_or_default().to_owned();
        match header.key.as_str() {
            ":method" => head.method = text(),
            ":path" => head.path = text(),
            "content-type" => head.content_type = Some(text()),
            "content-length" => head.content_length = text().parse().ok(),
            "content-encoding" => {
                let encoding = text();
                head.content_encoding = (!encoding.eq_ignore_ascii_case("identity")).then_some(encoding);
            }
            // The engine's answer must stay readable for the filter.
            "accept-encoding" => remove(&mut head, "accept-encoding"),
            "x-request-id" => head.request_id = request_id(&text()),
            "anthropic-version" => head.anthropic = true,
            name if name == tenant_header => {
                head.tenant = tenant(std::mem::take(&mut head.tenant), value(header));
            }
            name if is_control_header(name) => remove(&mut head, name),
            _ => {}
        }
    }
    head
}

fn remove(head: &mut RequestHead, name: &str) {
    if !head.remove.iter().any(|there| there == name) {
        head.remove.push(name.to_owned());
    }
}

fn tenant(before: TenantHeader, value: Option<&str>) -> TenantHeader {
    match (before, value) {
        (TenantHeader::Absent, Some(value)) => TenantHeader::One(value.to_owned()),
        (TenantHeader::One(before), Some(value)) if before == value => TenantHeader::One(before),
        _ => TenantHeader::Ambiguous,
    }
}

fn request_id(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(REQUEST_ID_BYTES_MAX).collect()
}

fn response_head(headers: &HttpHeaders, attributes: &HashMap<String, Struct>) -> ResponseHead {
    let (mut status, mut retry_after) = (0, None);
    for header in list(headers.headers.as_ref()) {
        match header.key.as_str() {
            ":status" => status = value(header).and_then(|text| text.parse().ok()).unwrap_or_default(),
            "retry-after" => {
                retry_after = value(header).and_then(|text| self::retry_after(text, SystemTime::now()))
            }
            _ => {}
        }
    }
    let upstream =
        attributes.values().find_map(|fields| fields.fields.get("upstream.address")).and_then(|value| {
            match value.kind.as_ref() {
                Some(Kind::StringValue(text)) => text.parse::<SocketAddr>().ok(),
                _ => None,
            }
        });
    ResponseHead { status, upstream, retry_after }
}

/// What `retry-after` says, in either of its forms: seconds, or a date.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    match text.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        // A date that has passed says that it is time.
        Err(_) => {
            httpdate::parse_http_date(text.trim()).ok().map(|at| at.duration_since(now).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HttpHeaders {
        let headers = list
            .iter()
            .map(|(key, value)| HeaderValue {
                key: (*key).to_owned(),
                raw_value: value.as_bytes().to_vec(),
                ..HeaderValue::default()
            })
            .collect();
        HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() }
    }

    #[test]
    fn every_spelling_of_a_control_header_is_removed_once() {
        let head = request_head(
            &headers(&[
                ("x-tokenweir-pool", "a"),
                ("x-tokenweir-pool", "b"),
                ("x-tokenweir-anything", "1"),
                ("x-gateway-destination-endpoint", "1.2.3.4:1"),
                ("x-gateway-destination-endpoint-served", "1.2.3.4:1"),
                ("x-vllm-priority", "-1"),
                ("x-data-parallel-rank", "0"),
                ("x-prefiller-host-port", "1.2.3.4:1"),
                ("x-prefiller-url", "http://1.2.3.4:1"),
                ("x-encoder-hosts-ports", "1.2.3.4:1"),
                ("x-data-parallel-host-port", "1.2.3.4:1"),
                ("x-kv-cache-source-host-port", "1.2.3.4:1"),
                ("x-llm-d-inference-objective", "high"),
                ("x-gateway-inference-fairness-id", "me"),
                ("accept-encoding", "gzip"),
                ("x-session-id", "kept"),
            ]),
            "x-tenant",
        );
        assert_eq!(head.remove.len(), 14, "{:?}", head.remove);
        assert!(!head.remove.contains(&"x-session-id".to_owned()));
    }

    #[test]
    fn a_doubled_tenant_header_counts_only_if_it_says_one_thing() {
        let tenant = |list: &[(&str, &str)]| request_head(&headers(list), "x-tenant").tenant;
        assert_eq!(tenant(&[]), TenantHeader::Absent);
        assert_eq!(tenant(&[("x-tenant", "a"), ("x-tenant", "a")]), TenantHeader::One("a".into()));
        assert_eq!(tenant(&[("x-tenant", "a"), ("x-tenant", "b")]), TenantHeader::Ambiguous);
        assert_eq!(
            tenant(&[("x-tenant", "b"), ("x-tenant", "a"), ("x-tenant", "b")]),
            TenantHeader::Ambiguous
        );
    }

    #[test]
    fn a_request_id_is_cut_and_cleaned() {
        assert_eq!(request_id(&format!("a b\n{}", "x".repeat(200))).len(), REQUEST_ID_BYTES_MAX);
        assert_eq!(request_id("a b\u{7f}"), "ab");
    }

    #[test]
    fn only_modes_that_can_work_are_taken() {
        let mode = |mode: BodySendMode| {
            body_mode(Some(&ProtocolConfiguration { request_body_mode: mode.into(), ..Default::default() }))
        };
        assert_eq!(body_mode(None), Some(BodyMode::Buffered));
        assert_eq!(mode(BodySendMode::FullDuplexStreamed), Some(BodyMode::FullDuplex));
        for other in [BodySendMode::None, BodySendMode::Streamed, BodySendMode::BufferedPartial] {
            assert_eq!(mode(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_endpoint_that_served_is_read_from_the_attributes() {
        let mut fields = Struct::default();
        let text = Kind::StringValue("10.0.0.7:8000".into());
        let value = envoy_types::pb::google::protobuf::Value { kind: Some(text) };
        fields.fields.insert("upstream.address".into(), value);
        let attributes = HashMap::from([("envoy.filters.http.ext_proc".to_owned(), fields)]);
        let head = response_head(&headers(&[(":status", "503"), ("retry-after", "7")]), &attributes);
        let (upstream, retry_after) = (Some(([10, 0, 0, 7], 8000).into()), Some(Duration::from_secs(7)));
        assert_eq!(head, ResponseHead { status: 503, upstream, retry_after });
    }

    #[test]
    fn retry_after_is_read_in_both_forms_and_never_guessed() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_700);
        for (text, seconds) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(77)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(retry_after(text, now), seconds.map(Duration::from_secs), "{text:?}");
        }
    }
}

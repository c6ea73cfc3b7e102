//! Replies of an exchange → Envoy's messages.

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use ext_proc_exchange::{BodyMode, Immediate, Reply, Verdict};
use proto_tokenweir::{METADATA_NAMESPACE, METADATA_VERDICT};

/// Largest piece of a body in full-duplex mode, bytes: what every conforming gateway takes.
const DUPLEX_CHUNK_BYTES_MAX: usize = 62_000;
/// Chooses the rule, and with it the pool.
const POOL_HEADER: &str = "x-tokenweir-pool";
/// Chooses the endpoint: a header, and a key of [`LB_NAMESPACE`].
const DESTINATION_HEADER: &str = "x-gateway-destination-endpoint";
const LB_NAMESPACE: &str = "envoy.lb";

/// The messages of one reply, in order.
pub(crate) fn messages(reply: Reply, mode: BodyMode) -> Vec<ProcessingResponse> {
    match reply {
        Reply::Proceed => vec![message(Response::RequestHeaders(HeadersResponse::default()))],
        Reply::ResponseHeaders => vec![message(Response::ResponseHeaders(HeadersResponse::default()))],
        Reply::Trailers => vec![message(Response::RequestTrailers(TrailersResponse::default()))],
        Reply::Immediate(answer) => vec![message(Response::ImmediateResponse(immediate(answer)))],
        Reply::Verdict(verdict) if verdict.is_bodiless() => vec![headers(&verdict)],
        Reply::Verdict(verdict) => match mode {
            BodyMode::Buffered => vec![buffered(verdict)],
            BodyMode::FullDuplex => full_duplex(&verdict),
        },
    }
}

fn message(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

fn set(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: name.to_owned(),
            raw_value: value.into_bytes(),
            ..HeaderValue::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

fn text(value: String) -> Value {
    Value { kind: Some(Kind::StringValue(value)) }
}

fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Struct {
    Struct { fields: pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

fn metadata(verdict: &Verdict) -> Struct {
    let nested = |inner: Struct| Value { kind: Some(Kind::StructValue(inner)) };
    fields([
        (
            METADATA_NAMESPACE,
            nested(fields([(METADATA_VERDICT, text(format!("{} {}", verdict.plan(), verdict.token())))])),
        ),
        (LB_NAMESPACE, nested(fields([(DESTINATION_HEADER, text(verdict.destination()))]))),
    ])
}

fn common(verdict: &Verdict, length: Option<usize>) -> CommonResponse {
    let mut set_headers =
        vec![set(POOL_HEADER, verdict.pool().to_owned()), set(DESTINATION_HEADER, verdict.destination())];
    set_headers.extend(length.map(|length| set("content-length", length.to_string())));
    CommonResponse {
        header_mutation: Some(HeaderMutation { set_headers, remove_headers: verdict.remove().to_vec() }),
        // Envoy ignores this unless the same message changes a header.
        clear_route_cache: true,
        ..CommonResponse::default()
    }
}

fn buffered(mut verdict: Verdict) -> ProcessingResponse {
    let dynamic_metadata = Some(metadata(&verdict));
    // Envoy answers 500 where a changed body and its announced length disagree.
    let length = (verdict.is_edited() && verdict.had_length()).then(|| verdict.body().len());
    let mut response = common(&verdict, length);
    if verdict.is_edited() {
        response.body_mutation = Some(BodyMutation { mutation: Some(Mutation::Body(verdict.take_body())) });
    }
    let reply = Response::RequestBody(BodyResponse { response: Some(response) });
    ProcessingResponse { dynamic_metadata, ..message(reply) }
}

/// The verdict in the reply to the request headers.
fn headers(verdict: &Verdict) -> ProcessingResponse {
    let headers = HeadersResponse { response: Some(common(verdict, None)) };
    let dynamic_metadata = Some(metadata(verdict));
    ProcessingResponse { dynamic_metadata, ..message(Response::RequestHeaders(headers)) }
}

fn full_duplex(verdict: &Verdict) -> Vec<ProcessingResponse> {
    let mut all = vec![headers(verdict)];
    // A body of no bytes ends too, and Envoy waits for that.
    let empty = verdict.body().is_empty() && !verdict.has_trailers();
    let pieces = verdict.body().chunks(DUPLEX_CHUNK_BYTES_MAX).chain(empty.then_some([].as_slice()));
    let mut pieces = pieces.peekable();
    while let Some(piece) = pieces.next() {
        let end_of_stream = pieces.peek().is_none() && !verdict.has_trailers();
        let streamed = StreamedBodyResponse { body: piece.to_vec(), end_of_stream, ..Default::default() };
        let mutation = BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) };
        let response = CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() };
        all.push(message(Response::RequestBody(BodyResponse { response: Some(response) })));
    }
    if verdict.has_trailers() {
        all.push(message(Response::RequestTrailers(TrailersResponse::default())));
    }
    all
}

fn immediate(answer: Immediate) -> ImmediateResponse {
    let mut set_headers = vec![set("content-type", "application/json".to_owned())];
    set_headers.extend(answer.headers.into_iter().map(|(name, value)| set(name, value)));
    ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(answer.status) }),
        headers: Some(HeaderMutation { set_headers, remove_headers: Vec::new() }),
        body: answer.body,
        grpc_status: None,
        details: format!("tokenweir_{}", answer.label),
    }
}

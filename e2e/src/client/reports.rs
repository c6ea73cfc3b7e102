//! Sends usage reports as a filter would, or as a forger would. The one place that uses the product's wire types: a
//! forger has them too.

use super::{Call, send_h2};
use anyhow::{Context, Result, bail};
use prost::Message;
use proto_tokenweir::token::{ExchangeId, KeyRing};
use proto_tokenweir::v1::usage_event::Event;
use proto_tokenweir::v1::{
    End, EndReason, ExchangeToken, ReportAck, ReportBatch, Usage, UsageEvent, UsageSource,
};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Length of the prefix of a gRPC message: a flag and a size.
const PREFIX: usize = 5;

/// Milliseconds since the epoch.
#[must_use]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A token for exchange number `exchange`, sealed with `key`, that expires `lifetime_ms` from now (negative: expired).
pub fn token(key_id: &str, key: &[u8], exchange: u128, lifetime_ms: i64) -> Result<String> {
    let ring = KeyRing::new([(key_id, key)])?;
    let now = now_ms();
    Ok(ring.seal(&ExchangeToken {
        version: 1,
        exchange: ExchangeId(exchange.to_be_bytes()).0.to_vec(),
        replica: "tokenweir-0".to_owned(),
        tenant: "anonymous".to_owned(),
        api: "chat_completions".to_owned(),
        model: "tiny-llama".to_owned(),
        pool: "a".to_owned(),
        issued_unix_ms: now.saturating_sub(1000),
        expires_unix_ms: now.saturating_add_signed(lifetime_ms),
        ..ExchangeToken::default()
    }))
}

/// The end of an exchange with this usage.
#[must_use]
pub fn end(token: &str, input: u64, output: u64) -> UsageEvent {
    let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
    let end = End {
        usage: Some(usage),
        source: UsageSource::Final.into(),
        reason: EndReason::Complete.into(),
        duration_us: 1000,
        status: 200,
        ..End::default()
    };
    UsageEvent { token: token.to_owned(), at_unix_ms: now_ms(), event: Some(Event::End(end)) }
}

/// Sends one batch, as batch number `sequence` of reporter `reporter`.
pub async fn report(
    service: SocketAddr,
    reporter: &str,
    sequence: u64,
    events: Vec<UsageEvent>,
) -> Result<ReportAck> {
    let batch = ReportBatch { version: 1, reporter: reporter.to_owned(), sequence, events, dropped: 0 };
    let message = batch.encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(message.len())?.to_be_bytes());
    body.extend(message);
    let path = format!("/{}/{}", proto_tokenweir::REPORT_SERVICE, proto_tokenweir::REPORT_METHOD);
    let call = Call::post(&path, body).content_type("application/grpc").header("te", "trailers");
    let reply = send_h2(service, call).await?;
    let trailers = reply.trailers.as_ref().unwrap_or(&reply.headers);
    let status = trailers.get("grpc-status").and_then(|value| value.to_str().ok()).unwrap_or("none");
    if status != "0" {
        bail!("gRPC status {status}: {:?}", trailers.get("grpc-message"));
    }
    ReportAck::decode(reply.body.get(PREFIX..).context("an empty answer")?).context("the acknowledgement")
}

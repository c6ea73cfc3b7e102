//! What a closed exchange adds to the metrics.

use std::time::Duration;

use ext_proc_meter::{End, Record, Source};
use proto_openai::Api;
use proto_tokenweir::v1;

use crate::metrics::{Ended, Labels, Metrics, OTHER, Series, Tokens};

fn series(metrics: &Metrics, record: &Record) -> std::sync::Arc<Series> {
    // Labels come out of a verified token, but a token may be another version's: only what we know becomes a label.
    let api = Api::from_label(&record.api).map_or(OTHER, Api::as_label);
    metrics.series(&Labels { model: &record.model, pool: &record.pool, tenant: &record.tenant, api })
}

/// Counts a record that a report has closed.
pub(crate) fn count_reported(metrics: &Metrics, record: &Record, end: &v1::End, stream: bool) {
    let series = series(metrics, record);
    // A correction's answer was counted when its lease ran out.
    if !record.flags.late {
        series.answered(u16::try_from(record.status).unwrap_or_default());
    }
    // Of a whole JSON answer the first byte is its end, not its first token.
    let first_token = record.ttft_us.map(Duration::from_micros).filter(|_| stream);
    if let Some(after) = first_token {
        series.first_token(after);
    }
    series.ended(&Ended {
        duration: Duration::from_micros(end.duration_us),
        first_token,
        tokens: Tokens {
            input: record.usage.input,
            output: record.usage.output,
            cached: record.usage.cached,
        },
        gaps: end.gaps.as_ref().filter(|_| stream),
    });
    if let Some(reason) = unmetered(record) {
        metrics.unmetered(reason);
    }
}

/// Why an answered exchange has no token count; `None`: it has one, or is owed none.
fn unmetered(record: &Record) -> Option<&'static str> {
    let metered = Api::from_label(&record.api).is_none_or(Api::is_metered);
    let answered = (200..300).contains(&record.status) && !record.flags.local_reply;
    if !metered || !answered {
        return None;
    }
    // The engine goes on whether or not anybody waits: only its closing usage covers all that it generates.
    if record.flags.background {
        return (record.usage_source != Source::Final).then_some("background");
    }
    let owed = record.end == End::Complete && record.usage_source == Source::None;
    owed.then_some(if record.flags.unparsed { "unparsed" } else { "no_usage" })
}

/// Counts a record that was closed by its lease.
pub(crate) fn count_unreported(metrics: &Metrics, record: &Record) {
    // A client that leaves between verdict and response is no sign that reports don't arrive.
    if record.flags.abandoned {
        metrics.abandoned();
    } else {
        metrics.lease_expired();
    }
    series(metrics, record).answered(u16::try_from(record.status).unwrap_or_default());
}

/// Counts a record that the end of its held stream has closed.
pub(crate) fn count_ended(metrics: &Metrics, record: &Record) {
    series(metrics, record).answered(u16::try_from(record.status).unwrap_or_default());
}

//! Gauges of single endpoints. Endpoints come and go, and the exporter never forgets a series, so they are written here:
//! what is so at the moment, and nothing of what was.

use std::fmt::Write;
use std::net::SocketAddr;

use super::exact::{escaped, head};
use super::families::{self as family, Family};

/// Most endpoints with gauges of their own; further ones are not shown.
pub const ENDPOINT_SERIES_MAX: usize = 16_384;

/// One endpoint at the moment. `None`: not known, and not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndpointGauges {
    /// Exchanges that it works on for this replica.
    pub in_flight: u32,
    /// Prompt tokens dispatched to it that have no first token yet.
    pub prefill_tokens: u64,
    /// What its signals say of it: a fixed text.
    pub health: &'static str,
    /// It refused or failed a request lately, and goes last.
    pub penalised: bool,
    /// Age of its numbers, milliseconds.
    pub signal_age_ms: Option<u64>,
    /// Requests that the engine runs, by its own count.
    pub running: Option<u32>,
    /// Requests that wait in the engine.
    pub waiting: Option<u32>,
    /// Share of its KV cache that is in use, 0 to 1.
    pub kv_usage: Option<f32>,
}

/// The rows of one page, by pool and endpoint.
pub(super) type Rows = Vec<(String, SocketAddr, EndpointGauges)>;

type Value = fn(&EndpointGauges) -> Option<f64>;

const PLAIN: [(&Family, Value); 7] = [
    (&family::IN_FLIGHT, |gauges| Some(f64::from(gauges.in_flight))),
    (&family::PREFILL_TOKENS, |gauges| Some(whole(gauges.prefill_tokens))),
    (&family::PENALISED, |gauges| Some(f64::from(u8::from(gauges.penalised)))),
    (&family::SIGNAL_AGE, |gauges| gauges.signal_age_ms.map(|ms| whole(ms) / 1_000.0)),
    (&family::ENGINE_RUNNING, |gauges| gauges.running.map(f64::from)),
    (&family::ENGINE_WAITING, |gauges| gauges.waiting.map(f64::from)),
    (&family::ENGINE_KV_USAGE, |gauges| gauges.kv_usage.map(f64::from)),
];

/// A count as a gauge's value; exact far beyond any real one.
fn whole(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

/// Appends all families in Prometheus' text format.
pub(super) fn render(rows: &Rows, out: &mut String) {
    // Writing to a `String` cannot fail.
    let _ = PLAIN.iter().try_for_each(|(family, value)| plain(family, *value, rows, out));
    let _ = health(rows, out);
}

fn plain(family: &Family, value: Value, rows: &Rows, out: &mut String) -> std::fmt::Result {
    head(out, family, "gauge")?;
    for (pool, endpoint, gauges) in rows {
        if let Some(value) = value(gauges) {
            writeln!(out, "{}{{pool=\"{}\",endpoint=\"{endpoint}\"}} {value}", family.name, escaped(pool))?;
        }
    }
    out.write_char('\n')
}

/// One series an endpoint: the state that it is in, with the value 1.
fn health(rows: &Rows, out: &mut String) -> std::fmt::Result {
    let family = &family::HEALTH;
    head(out, family, "gauge")?;
    for (pool, endpoint, gauges) in rows {
        let (name, pool, health) = (family.name, escaped(pool), gauges.health);
        writeln!(out, "{name}{{pool=\"{pool}\",endpoint=\"{endpoint}\",health=\"{health}\"}} 1")?;
    }
    out.write_char('\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_of_an_endpoint_is_not_shown() {
        let known = EndpointGauges {
            in_flight: 3,
            prefill_tokens: 1_200,
            health: "ready",
            penalised: true,
            signal_age_ms: Some(1_250),
            running: Some(4),
            waiting: Some(2),
            kv_usage: Some(0.5),
        };
        let unknown = EndpointGauges { health: "unknown", ..EndpointGauges::default() };
        let [a, b] = ["127.0.0.1:1", "[::1]:2"].map(|text| text.parse().expect("an address"));
        let mut text = String::new();
        render(&vec![("p".to_owned(), a, known), ("p".to_owned(), b, unknown)], &mut text);
        for line in [
            "tokenweir_in_flight{pool=\"p\",endpoint=\"127.0.0.1:1\"} 3",
            "tokenweir_in_flight{pool=\"p\",endpoint=\"[::1]:2\"} 0",
            "tokenweir_prefill_tokens_in_flight{pool=\"p\",endpoint=\"127.0.0.1:1\"} 1200",
            "tokenweir_endpoint_penalised{pool=\"p\",endpoint=\"127.0.0.1:1\"} 1",
            "tokenweir_signal_age_seconds{pool=\"p\",endpoint=\"127.0.0.1:1\"} 1.25",
            "tokenweir_engine_running_requests{pool=\"p\",endpoint=\"127.0.0.1:1\"} 4",
            "tokenweir_engine_waiting_requests{pool=\"p\",endpoint=\"127.0.0.1:1\"} 2",
            "tokenweir_engine_kv_usage_ratio{pool=\"p\",endpoint=\"127.0.0.1:1\"} 0.5",
            "tokenweir_endpoint_health{pool=\"p\",endpoint=\"127.0.0.1:1\",health=\"ready\"} 1",
            "tokenweir_endpoint_health{pool=\"p\",endpoint=\"[::1]:2\",health=\"unknown\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("tokenweir_signal_age_seconds{pool=\"p\",endpoint=\"[::1]:2\"}"), "{text}");
    }
}

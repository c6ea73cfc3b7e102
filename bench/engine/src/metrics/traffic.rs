//! Requests as the web framework counts them.

use super::{head, histogram, number};
use crate::scheduler::Histogram;
use std::fmt::Write;

const FINE: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
];
const COARSE: &[f64] = &[0.1, 0.5, 1.0];
/// Handlers times methods times kinds of status that are told apart: paths are few.
const SERIES_MAX: usize = 128;

#[derive(Debug)]
struct Handler {
    path: &'static str,
    method: &'static str,
    statuses: Vec<(u16, u64)>,
    count: u64,
    in_bytes: u64,
    out_bytes: u64,
    took: Histogram,
}

/// All requests since the start but those of health and metrics.
#[derive(Debug)]
pub(crate) struct Traffic {
    handlers: Vec<Handler>,
    took: Histogram,
}

impl Default for Traffic {
    fn default() -> Self {
        Self { handlers: Vec::new(), took: Histogram::new(FINE) }
    }
}

impl Traffic {
    /// Counts a request. Bytes are those that the headers announced.
    pub(crate) fn count(
        &mut self,
        path: &'static str,
        method: &'static str,
        status: u16,
        bytes: (u64, u64),
        took: f64,
    ) {
        self.took.observe(took);
        let at = self.handlers.iter().position(|handler| handler.path == path && handler.method == method);
        let at = at.unwrap_or_else(|| {
            let took = Histogram::new(COARSE);
            let new =
                Handler { path, method, statuses: Vec::new(), count: 0, in_bytes: 0, out_bytes: 0, took };
            if self.handlers.len() < SERIES_MAX {
                self.handlers.push(new);
            }
            self.handlers.len() - 1
        });
        let handler = &mut self.handlers[at];
        handler.count += 1;
        handler.in_bytes += bytes.0;
        handler.out_bytes += bytes.1;
        handler.took.observe(took);
        match handler.statuses.iter_mut().find(|(class, _)| *class == status / 100) {
            Some((_, count)) => *count += 1,
            None => handler.statuses.push((status / 100, 1)),
        }
    }

    pub(crate) fn write(&self, started: f64, out: &mut String) {
        let started = number(started);
        let created = |name: &str, help: &str, labels: &[String], out: &mut String| {
            if labels.is_empty() {
                return;
            }
            head(name, "gauge", help, out);
            labels.iter().for_each(|labels| {
                let _ = writeln!(out, "{name}{labels} {started}");
            });
        };
        let help = "Total number of requests by method, status and handler.";
        head("http_requests_total", "counter", help, out);
        let mut labels = Vec::new();
        for handler in &self.handlers {
            for (class, count) in &handler.statuses {
                let (path, method) = (handler.path, handler.method);
                labels.push(format!("{{handler=\"{path}\",method=\"{method}\",status=\"{class}xx\"}}"));
                let _ = writeln!(
                    out,
                    "http_requests_total{} {}",
                    labels.last().map_or("", |labels| labels),
                    number(*count as f64)
                );
            }
        }
        created("http_requests_created", help, &labels, out);
        let paths: Vec<String> =
            self.handlers.iter().map(|handler| format!("{{handler=\"{}\"}}", handler.path)).collect();
        let tail =
            "by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. ";
        for (direction, word) in [("request", "incoming requests"), ("response", "outgoing responses")] {
            let (name, help) =
                (format!("http_{direction}_size_bytes"), format!("Content length of {word} {tail}"));
            head(&name, "summary", &help, out);
            for (handler, labels) in self.handlers.iter().zip(&paths) {
                let bytes = if direction == "request" { handler.in_bytes } else { handler.out_bytes };
                let _ = writeln!(out, "{name}_count{labels} {}", number(handler.count as f64));
                let _ = writeln!(out, "{name}_sum{labels} {}", number(bytes as f64));
            }
            created(&format!("{name}_created"), &help, &paths, out);
        }
        let (name, help) = (
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
        );
        head(name, "histogram", help, out);
        histogram(name, "", "", &self.took, out);
        created(&format!("{name}_created"), help, &[String::new()], out);
        let (name, help) = (
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
        );
        head(name, "histogram", help, out);
        let mut labels = Vec::new();
        for handler in &self.handlers {
            let (path, method) =
                (format!("handler=\"{}\"", handler.path), format!("method=\"{}\"", handler.method));
            histogram(name, &path, &method, &handler.took, out);
            labels.push(format!("{{{path},{method}}}"));
        }
        created(&format!("{name}_created"), help, &labels, out);
    }
}

//! `tokenweir.v1.UsageReports`: what the filter counted. A batch is acknowledged once its records are written; each event
//! is settled exactly once, however often it comes.

use std::sync::Arc;
use std::time::Duration;

use ext_proc_meter::{Effect, Outcome, Record};
use proto_tokenweir::v1::{ReportAck, ReportBatch, UsageEvent, usage_event};
use proto_tokenweir::{REPORT_VERSION, v1};
use tonic::{Request, Response, Status};

use crate::clock::unix_ms;
use crate::generated::usage_reports_server::UsageReports;
use crate::metrics::ReportOutcome;
use crate::service::Shared;
use crate::settlement;

/// Events taken in one batch.
const BATCH_EVENTS_MAX: usize = 4_096;
/// How long the log may take to confirm, below the filter's own time limit.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// The gRPC service.
pub(crate) struct Reports(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl UsageReports for Reports {
    async fn report(&self, request: Request<ReportBatch>) -> Result<Response<ReportAck>, Status> {
        let batch = request.into_inner();
        if batch.version != REPORT_VERSION {
            self.0.metrics.report("batch", ReportOutcome::Refused, "version");
            return Err(Status::unimplemented("this replica reads version 1 of the report format"));
        }
        if batch.events.len() > BATCH_EVENTS_MAX {
            self.0.metrics.report("batch", ReportOutcome::Refused, "too_many");
            return Err(Status::invalid_argument("a batch holds at most 4096 events"));
        }
        let not_written = |_| {
            self.0.metrics.report("batch", ReportOutcome::Refused, "not_written");
            Status::unavailable("the exchange log can't be written now; send the batch again")
        };
        // This call can be dropped wherever it waits. So it waits for places first, and from the first settled event to
        // the last record handed over it doesn't wait at all.
        let mut places = self.0.log.places(batch.events.len(), WRITTEN_WITHIN).await.map_err(not_written)?;
        let mut ack = ReportAck::default();
        for event in &batch.events {
            for record in self.event(event, &mut ack) {
                places.put(&record);
            }
        }
        drop(places);
        // Also for a batch of doubled events alone: the first copy's records may still be on their way to the disk.
        self.0.log.written(WRITTEN_WITHIN).await.map_err(not_written)?;
        Ok(Response::new(ack))
    }
}

impl Reports {
    fn event(&self, event: &UsageEvent, ack: &mut ReportAck) -> Vec<Record> {
        let kind = label(event);
        if event.token.is_empty() {
            // Passed without a verdict, on an open route: nobody can be billed, but it is seen.
            if let Some(usage_event::Event::End(end)) = &event.event
                && !end.upstream_address.is_empty()
            {
                self.0.metrics.unmetered("no_verdict");
            }
            self.0.metrics.report(kind, ReportOutcome::Accepted, "no_verdict");
            ack.accepted += 1;
            return Vec::new();
        }
        let now_ms = unix_ms();
        let (id, token) = match self.0.dispatcher.ring.open(&event.token, now_ms) {
            Ok(opened) => opened,
            Err(error) => {
                self.0.metrics.report(kind, ReportOutcome::Refused, error.as_label());
                tracing::warn!(reason = error.as_label(), event = kind, "refused a usage report");
                ack.refused += 1;
                return Vec::new();
            }
        };
        let (effects, late) = match self.0.dispatcher.books.report(id, &token, event, now_ms) {
            Outcome::Accepted(effects) => (effects, false),
            Outcome::Late(effects) => (effects, true),
            Outcome::Doubled => {
                self.0.metrics.report(kind, ReportOutcome::Doubled, "");
                ack.doubled += 1;
                return Vec::new();
            }
            Outcome::Empty => {
                self.0.metrics.report(kind, ReportOutcome::Refused, "empty");
                ack.refused += 1;
                return Vec::new();
            }
        };
        ack.accepted += 1;
        self.0.metrics.report(kind, ReportOutcome::Accepted, "");
        self.settle(&token, event, effects, late)
    }

    fn settle(
        &self,
        token: &v1::ExchangeToken,
        event: &UsageEvent,
        effects: Vec<Effect>,
        late: bool,
    ) -> Vec<Record> {
        if late {
            self.0.metrics.report_late();
        }
        let pools = &self.0.dispatcher.pools;
        let records: Vec<Record> = effects.into_iter().filter_map(|effect| pools.perform(effect)).collect();
        if let Some(usage_event::Event::End(end)) = &event.event {
            for record in &records {
                self.0.dispatcher.stored.learn(record);
                settlement::count_reported(&self.0.metrics, record, end, token.stream);
            }
        }
        records
    }
}

fn label(event: &UsageEvent) -> &'static str {
    match event.event {
        Some(usage_event::Event::FirstToken(_)) => "first_token",
        Some(usage_event::Event::Progress(_)) => "progress",
        Some(usage_event::Event::End(_)) => "end",
        None => "unknown",
    }
}

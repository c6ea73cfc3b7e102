//! A scripted proxy for tests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use prost::Message;
use proto_tokenweir::v1::{End, ReportBatch, UsageEvent, usage_event::Event};
use proto_tokenweir::{METADATA_NAMESPACE, METADATA_VERDICT, REPORT_METHOD, REPORT_SERVICE};

use crate::host::{Call, Counter, DispatchError, Host, Level};

/// A call that the logic started.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) call: u32,
    pub(crate) cluster: String,
    pub(crate) batch: ReportBatch,
}

/// Envoy, as the test scripts it.
#[derive(Default)]
pub(crate) struct FakeHost {
    pub(crate) now_us: Cell<u64>,
    pub(crate) properties: RefCell<HashMap<String, Vec<u8>>>,
    pub(crate) request_headers: RefCell<BTreeMap<String, Vec<u8>>>,
    pub(crate) response_headers: RefCell<BTreeMap<String, Vec<u8>>>,
    /// The current chunk; `None`: the proxy does not give it.
    pub(crate) chunk: RefCell<Option<Vec<u8>>>,
    pub(crate) replaced: Cell<bool>,
    pub(crate) reply: RefCell<Option<(u32, String)>>,
    pub(crate) missing_clusters: RefCell<Vec<String>>,
    pub(crate) calls: RefCell<Vec<Sent>>,
    pub(crate) done: Cell<u32>,
    pub(crate) gauge: Cell<i64>,
    pub(crate) lines: RefCell<Vec<(Level, String)>>,
    counts: RefCell<HashMap<Counter, u64>>,
}

impl FakeHost {
    /// A request with a verdict, at an ordinary time.
    pub(crate) fn with_verdict(token: &str, plan: &str) -> FakeHost {
        let host = FakeHost::default();
        host.now_us.set(1_700_000_000_000_000);
        host.set_verdict(token, plan);
        host.set_request(":method", "POST");
        host.set_request(":path", "/v1/chat/completions");
        host
    }

    /// A request that nobody gave a verdict for.
    pub(crate) fn without_verdict() -> FakeHost {
        let host = FakeHost::with_verdict("", "");
        host.properties.borrow_mut().clear();
        host
    }

    pub(crate) fn set_verdict(&self, token: &str, plan: &str) {
        let path = ["metadata", "filter_metadata", METADATA_NAMESPACE, METADATA_VERDICT];
        self.set_property(&path, format!("{plan} {token}").as_bytes());
    }

    pub(crate) fn set_property(&self, path: &[&str], value: &[u8]) {
        self.properties.borrow_mut().insert(path.join("\0"), value.to_vec());
    }

    pub(crate) fn set_integer(&self, path: &[&str], value: u64) {
        self.set_property(path, &value.to_le_bytes());
    }

    pub(crate) fn set_request(&self, name: &str, value: &str) {
        self.request_headers.borrow_mut().insert(name.to_owned(), value.as_bytes().to_vec());
    }

    pub(crate) fn set_response(&self, name: &str, value: &str) {
        self.response_headers.borrow_mut().insert(name.to_owned(), value.as_bytes().to_vec());
    }

    /// The response headers of an engine.
    pub(crate) fn respond(&self, status: u32, content_type: &str) {
        self.set_response(":status", &status.to_string());
        self.set_response("content-type", content_type);
        self.set_property(&["response", "code_details"], b"via_upstream");
        self.set_property(&["upstream", "address"], b"127.0.0.1:8001");
        self.set_integer(&["response", "code"], u64::from(status));
    }

    pub(crate) fn pass_us(&self, us: u64) {
        self.now_us.set(self.now_us.get() + us);
    }

    pub(crate) fn counted(&self, counter: Counter) -> u64 {
        self.counts.borrow().get(&counter).copied().unwrap_or(0)
    }

    /// All events that were sent, in order.
    pub(crate) fn sent(&self) -> Vec<UsageEvent> {
        self.calls.borrow().iter().flat_map(|sent| sent.batch.events.clone()).collect()
    }

    /// The one end that was sent, with its token.
    pub(crate) fn sent_end(&self) -> (String, End) {
        let ends: Vec<_> = self
            .sent()
            .into_iter()
            .filter_map(|event| match event.event {
                Some(Event::End(end)) => Some((event.token, end)),
                _ => None,
            })
            .collect();
        assert_eq!(ends.len(), 1, "{ends:?}");
        ends[0].clone()
    }
}

impl Host for FakeHost {
    fn now_us(&self) -> u64 {
        self.now_us.get()
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.properties.borrow().get(&path.join("\0")).cloned()
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        self.request_headers.borrow().get(name).cloned()
    }

    fn response_headers(&self) -> Vec<(String, Vec<u8>)> {
        self.response_headers.borrow().clone().into_iter().collect()
    }

    fn remove_response_header(&self, name: &str) {
        self.response_headers.borrow_mut().remove(name);
    }

    fn chunk(&self, size: usize) -> Option<Vec<u8>> {
        let chunk = self.chunk.borrow().clone()?;
        assert_eq!(chunk.len(), size, "the chunk is asked for whole");
        Some(chunk)
    }

    fn replace_chunk(&self, size: usize, bytes: &[u8]) {
        assert_eq!(self.chunk.borrow().as_ref().map(Vec::len), Some(size), "the chunk is replaced whole");
        self.chunk.replace(Some(bytes.to_vec()));
        assert!(!self.replaced.replace(true), "a chunk is replaced once");
    }

    fn send_local_reply(&self, status: u32, _headers: &[(&str, &str)], body: &[u8]) {
        let reply = (status, String::from_utf8(body.to_vec()).unwrap());
        assert_eq!(self.reply.replace(Some(reply)), None, "a request is answered once");
    }

    fn count(&self, counter: Counter, by: u64) {
        *self.counts.borrow_mut().entry(counter).or_default() += by;
    }

    fn move_queue_gauge(&self, by: i64) {
        self.gauge.set(self.gauge.get() + by);
    }

    fn dispatch(&self, call: &Call<'_>) -> Result<u32, DispatchError> {
        assert_eq!((call.service, call.method), (REPORT_SERVICE, REPORT_METHOD));
        if self.missing_clusters.borrow().iter().any(|missing| missing == call.cluster) {
            return Err(DispatchError::Refused);
        }
        let batch = ReportBatch::decode(call.payload).unwrap();
        assert!(!batch.events.is_empty(), "an empty report is sent");
        let mut calls = self.calls.borrow_mut();
        let id = 100 + calls.len() as u32;
        calls.push(Sent { call: id, cluster: call.cluster.to_owned(), batch });
        Ok(id)
    }

    fn done(&self) {
        self.done.set(self.done.get() + 1);
    }

    fn log(&self, level: Level, line: &str) {
        self.lines.borrow_mut().push((level, line.to_owned()));
    }
}

//! The parts of the play: a running `tokenweir`, and Envoy's side of a stream.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

pub(crate) const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
const LONG: usize = 64 << 20;

/// A running service with its own state folder.
pub(crate) struct Served {
    child: Child,
    pub(crate) dir: PathBuf,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    _keep: Option<tempfile::TempDir>,
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port")
}

impl Served {
    pub(crate) async fn start(more: &str) -> Self {
        Self::prepare("", more).await
    }

    /// With one more member of `listen`.
    pub(crate) async fn start_with(listen: &str) -> Self {
        Self::prepare(&format!(", {listen}"), "").await
    }

    async fn prepare(listen: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let (grpc, admin) = (free(), free());
        let config = format!(
            "listen: {{grpc: [\"{grpc}\", \"unix:{0}/s.sock\"], admin: \"{admin}\"{listen}}}\nstate_dir: {0}/state\n\
             pools: [{{name: a, models: [m], strategy: round_robin}}, {{name: empty, models: [none]}}]\n\
             endpoints: {{file: {0}/endpoints.yaml}}\n{more}",
            dir.path().display()
        );
        std::fs::write(dir.path().join("tokenweir.yaml"), config).expect("config");
        let endpoints = "pools: {a: [{address: \"127.0.0.1:9001\"}, {address: \"127.0.0.1:9002\"}]}\n";
        std::fs::write(dir.path().join("endpoints.yaml"), endpoints).expect("endpoints");
        let path = dir.path().to_owned();
        let child = spawn(&path);
        let served = Self { child, dir: path, grpc, admin, _keep: Some(dir) };
        served.ready().await;
        served
    }

    /// Kills the process as `kill -9` does, and starts it again on the same state.
    pub(crate) async fn restart(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
        self.child = spawn(&self.dir);
        self.ready().await;
    }

    pub(crate) fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    }

    pub(crate) async fn exit(&mut self, within: Duration) -> std::process::ExitStatus {
        let until = Instant::now() + within;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the service did not exit within {within:?}");
    }

    async fn ready(&self) {
        for _ in 0..500 {
            if tokio::net::TcpStream::connect(self.grpc).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the service did not start");
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.grpc)).expect("uri");
        endpoint.initial_stream_window_size(LONG as u32).connect().await.expect("connects")
    }

    pub(crate) fn records(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.dir.join("state/exchanges.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut socket = tokio::net::TcpStream::connect(self.admin).await.expect("admin");
        socket
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .expect("ask");
        let mut text = String::new();
        socket.read_to_string(&mut text).await.expect("answer");
        let value =
            |line: &str| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(name)).map(value).sum()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tokenweir"))
        .args(["serve", "--config"])
        .arg(dir.join("tokenweir.yaml"))
        .stderr(Stdio::null())
        .spawn()
        .expect("tokenweir starts")
}

/// Envoy's side of one stream.
pub(crate) struct Stream {
    pub(crate) send: Option<mpsc::Sender<ProcessingRequest>>,
    receive: Streaming<ProcessingResponse>,
    mode: BodySendMode,
    first: bool,
}

impl Stream {
    pub(crate) async fn open(served: &Served, mode: BodySendMode) -> Result<Self, Status> {
        let mut client = ExternalProcessorClient::new(served.channel().await)
            .max_decoding_message_size(LONG)
            .max_encoding_message_size(LONG);
        let (send, messages) = mpsc::channel(64);
        let receive = client.process(ReceiverStream::new(messages)).await?.into_inner();
        Ok(Self { send: Some(send), receive, mode, first: true })
    }

    pub(crate) async fn say(&mut self, request: Request) {
        let config = ProtocolConfiguration { request_body_mode: self.mode.into(), ..Default::default() };
        let protocol_config = std::mem::take(&mut self.first).then_some(config);
        let message = ProcessingRequest { protocol_config, request: Some(request), ..Default::default() };
        self.send_message(message).await;
    }

    pub(crate) async fn send_message(&self, message: ProcessingRequest) {
        self.send.as_ref().expect("open").send(message).await.expect("the service reads");
    }

    pub(crate) async fn headers(&mut self, path: &str) {
        let list = [
            (":method", "POST"),
            (":path", path),
            ("content-type", "application/json"),
            ("x-request-id", "rid"),
            ("x-tokenweir-pool", "spoofed"),
        ];
        self.say(Request::RequestHeaders(http_headers(&list))).await;
    }

    pub(crate) async fn body(&mut self, body: &[u8], end_of_stream: bool) {
        self.say(Request::RequestBody(HttpBody { body: body.to_vec(), end_of_stream, ..Default::default() }))
            .await;
    }

    pub(crate) async fn response_headers(&mut self, upstream: &str) {
        let kind = Some(Kind::StringValue(upstream.to_owned()));
        let fields = Struct { fields: [("upstream.address".to_owned(), Value { kind })].into() };
        let message = ProcessingRequest {
            attributes: [("envoy.filters.http.ext_proc".to_owned(), fields)].into(),
            request: Some(Request::ResponseHeaders(http_headers(&[(":status", "200")]))),
            ..Default::default()
        };
        self.send_message(message).await;
    }

    /// The next reply; `None`: the stream has ended with OK.
    pub(crate) async fn reply(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        tokio::time::timeout(Duration::from_secs(20), self.receive.message())
            .await
            .expect("an answer in time")
    }

    /// The verdict of a whole buffered request.
    pub(crate) async fn verdict(&mut self) -> ProcessingResponse {
        self.headers("/v1/chat/completions").await;
        let proceed = self.reply().await.expect("open").expect("a reply");
        assert!(matches!(proceed.response, Some(Response::RequestHeaders(_))));
        self.body(CHAT.as_bytes(), true).await;
        self.reply().await.expect("open").expect("a reply")
    }
}

pub(crate) fn http_headers(list: &[(&str, &str)]) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..Default::default()
    };
    HttpHeaders {
        headers: Some(HeaderMap { headers: list.iter().map(header).collect() }),
        ..Default::default()
    }
}

/// The text of `key` in one namespace of a reply's dynamic metadata.
pub(crate) fn metadata(reply: &ProcessingResponse, namespace: &str, key: &str) -> Option<String> {
    let outer = reply.dynamic_metadata.as_ref()?.fields.get(namespace)?;
    let Some(Kind::StructValue(inner)) = &outer.kind else { return None };
    match &inner.fields.get(key)?.kind {
        Some(Kind::StringValue(text)) => Some(text.clone()),
        _ => None,
    }
}

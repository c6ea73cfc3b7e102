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
const POOLS: &str = "[{name: a, models: [m], strategy: round_robin}, {name: empty, models: [none]}]";
const ENDPOINTS: &str = "{a: [{address: \"127.0.0.1:9001\"}, {address: \"127.0.0.1:9002\"}]}";

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
        Self::prepare("", POOLS, ENDPOINTS, more).await
    }

    /// With pools and endpoints of its own: YAML in flow style.
    pub(crate) async fn start_pools(pools: &str, endpoints: &str, more: &str) -> Self {
        Self::prepare("", pools, endpoints, more).await
    }

    /// With one more member of `listen`.
    pub(crate) async fn start_with(listen: &str) -> Self {
        Self::prepare(&format!(", {listen}"), POOLS, ENDPOINTS, "").await
    }

    async fn prepare(listen: &str, pools: &str, endpoints: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let (grpc, admin) = (free(), free());
        let config = format!(
            "listen: {{grpc: [\"{grpc}\", \"unix:{0}/s.sock\"], admin: \"{admin}\"{listen}}}\nstate_dir: {0}/state\n\
             pools: {pools}\n\
             endpoints: {{file: {0}/endpoints.yaml}}\n{more}",
            dir.path().display()
        );
        std::fs::write(dir.path().join("tokenweir.yaml"), config).expect("config");
        std::fs::write(dir.path().join("endpoints.yaml"), format!("pools: {endpoints}\n"))
            .expect("endpoints");
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

    /// What the admin port answers.
    pub(crate) async fn get(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut socket = tokio::net::TcpStream::connect(self.admin).await.expect("admin");
        let ask = format!("GET {path} HTTP/1.0\r\nhost: x\r\n\r\n");
        socket.write_all(ask.as_bytes()).await.expect("ask");
        let mut text = String::new();
        socket.read_to_string(&mut text).await.expect("answer");
        text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).expect("a head")
    }

    /// A page of the admin port that is JSON.
    pub(crate) async fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&self.get(path).await).expect("JSON")
    }

    /// The sum of all series whose line begins with `name`.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await;
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
        self.response(Some(upstream), &[(":status", "200")]).await;
    }

    /// Response headers from `upstream`; `None`: no endpoint was reached.
    pub(crate) async fn response(&mut self, upstream: Option<&str>, headers: &[(&str, &str)]) {
        let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let fields = upstream.map(|upstream| ("upstream.address".to_owned(), value(upstream)));
        let attributes = Struct { fields: fields.into_iter().collect() };
        let message = ProcessingRequest {
            attributes: [("envoy.filters.http.ext_proc".to_owned(), attributes)].into(),
            request: Some(Request::ResponseHeaders(http_headers(headers))),
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
        self.verdict_on(CHAT).await
    }

    /// The verdict of a whole buffered chat request with this body.
    pub(crate) async fn verdict_on(&mut self, body: &str) -> ProcessingResponse {
        self.headers("/v1/chat/completions").await;
        let proceed = self.reply().await.expect("open").expect("a reply");
        assert!(matches!(proceed.response, Some(Response::RequestHeaders(_))));
        self.body(body.as_bytes(), true).await;
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

/// The plan and the exchange token of a verdict.
pub(crate) fn decision(reply: &ProcessingResponse) -> Option<(String, String)> {
    let text = metadata(reply, "io.tokenweir", "verdict")?;
    text.split_once(' ').map(|(plan, token)| (plan.to_owned(), token.to_owned()))
}

/// Status and body of an immediate response.
pub(crate) fn immediate(reply: &ProcessingResponse) -> (i32, String) {
    match &reply.response {
        Some(Response::ImmediateResponse(immediate)) => {
            let status = immediate.status.as_ref().expect("a status").code;
            (status, String::from_utf8(immediate.body.clone()).expect("text"))
        }
        other => panic!("not an immediate response: {other:?}"),
    }
}

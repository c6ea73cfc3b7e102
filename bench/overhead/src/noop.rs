//! The floor: an ext_proc that only ever says "continue". Tonic with the same server and runtime settings as Tokenweir, and as little
//! around it as there can be: replies are a plain mapping of the messages that come.

use std::pin::Pin;

use anyhow::Result;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, HeadersResponse, ProcessingRequest, ProcessingResponse, TrailersResponse,
};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::setups::listen;

/// Longest message, bytes: as Tokenweir's default.
const MESSAGE_BYTES_MAX: usize = (32 << 20) + (1 << 20);

struct Noop;

fn answer(message: ProcessingRequest) -> ProcessingResponse {
    let response = message.request.map(|message| match message {
        Message::RequestHeaders(_) => Answer::RequestHeaders(HeadersResponse::default()),
        Message::RequestBody(_) => Answer::RequestBody(BodyResponse::default()),
        Message::RequestTrailers(_) => Answer::RequestTrailers(TrailersResponse::default()),
        Message::ResponseHeaders(_) => Answer::ResponseHeaders(HeadersResponse::default()),
        Message::ResponseBody(_) => Answer::ResponseBody(BodyResponse::default()),
        Message::ResponseTrailers(_) => Answer::ResponseTrailers(TrailersResponse::default()),
    });
    ProcessingResponse { response, ..ProcessingResponse::default() }
}

#[tonic::async_trait]
impl ExternalProcessor for Noop {
    type ProcessStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        Ok(Response::new(Box::pin(request.into_inner().map(|message| message.map(answer)))))
    }
}

/// Serves on a port that it prints, until the process is ended.
pub(crate) fn serve() -> Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from) / 2;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers.max(1)).enable_all().build()?;
    let window = u32::try_from(MESSAGE_BYTES_MAX)?;
    let service = ExternalProcessorServer::new(Noop)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let server = Server::builder()
        .initial_stream_window_size(window)
        .initial_connection_window_size(2 * window)
        .add_service(service);
    runtime.block_on(async {
        // As Tokenweir: an answer does not wait for an acknowledgement.
        let listener = TcpIncoming::from(listen().await?).with_nodelay(Some(true));
        Ok(server.serve_with_incoming(listener).await?)
    })
}

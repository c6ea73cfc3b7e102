//! `tokenweir.wasm`: host calls only. All decisions are in `wasm-filter-meter`.

mod envoy;
mod grpc_service;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, ContextType, LogLevel};
use wasm_filter_meter::config::CONFIG_BYTES_MAX;
use wasm_filter_meter::host::Host;
use wasm_filter_meter::root::Root;
use wasm_filter_meter::stream::{Passage, Stream};

use crate::envoy::{Envoy, define_metrics, tell_metrics};

/// Called by Envoy for each new VM.
#[allow(unsafe_code, reason = "an exported symbol; the name is fixed by the proxy-wasm ABI")]
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    // This also installs a panic hook that writes to Envoy's log.
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|context_id| Box::new(RootShim { root: Root::new(name(context_id)) }));
}

/// Names a root context in reports: its start and number make it unlike others, well enough for logs.
fn name(context_id: u32) -> String {
    format!("{:x}-{context_id}", Envoy.now_us())
}

struct RootShim {
    root: Root,
}

impl Context for RootShim {
    fn on_grpc_call_response(&mut self, token_id: u32, status_code: u32, _response_size: usize) {
        self.root.on_answer(&Envoy, token_id, status_code);
    }

    fn on_done(&mut self) -> bool {
        let done = self.root.on_done(&Envoy);
        tell_metrics();
        done
    }
}

impl RootContext for RootShim {
    fn on_configure(&mut self, size: usize) -> bool {
        define_metrics();
        // One byte more than is read, so that a configuration that is too long is told so.
        let wanted = size.min(CONFIG_BYTES_MAX + 1);
        let bytes = match wanted {
            0 => None,
            _ => hostcalls::get_buffer(BufferType::PluginConfiguration, 0, wanted).ok().flatten(),
        };
        match self.root.configure(&Envoy, &bytes.unwrap_or_default()) {
            Some(tick) => hostcalls::set_tick_period(tick).is_ok(),
            None => false,
        }
    }

    fn on_tick(&mut self) {
        self.root.on_tick(&Envoy);
        tell_metrics();
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(StreamShim { stream: self.root.open_stream() }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct StreamShim {
    stream: Stream,
}

impl Context for StreamShim {}

impl HttpContext for StreamShim {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        match self.stream.on_request_headers(&Envoy) {
            Passage::Passed => Action::Continue,
            Passage::Answered => Action::Pause,
        }
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        self.stream.on_response_headers(&Envoy, end_of_stream);
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.stream.on_response_body(&Envoy, size, end_of_stream);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        self.stream.on_response_trailers(&Envoy);
        Action::Continue
    }

    fn on_log(&mut self) {
        self.stream.on_log(&Envoy);
    }
}

//! OpenAI and Anthropic bodies, SSE framing and usage; pure, also wasm32.

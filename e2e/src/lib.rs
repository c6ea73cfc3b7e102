//! Suites with real parts: Envoy, engines, SDK clients.

//! Server-sent events, framed from bytes.

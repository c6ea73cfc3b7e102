//! The gRPC service of `proto-tokenweir`'s reports.proto, generated and checked in; a test there holds it current.
#![allow(missing_docs, unused_qualifications, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]

include!("generated/tokenweir.v1.rs");

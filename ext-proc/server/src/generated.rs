//! The gRPC service of `proto-tokenweir`'s reports.proto, generated and checked in; a test there holds it current.
#![allow(
    missing_docs,
    unused_qualifications,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]

include!("generated/tokenweir.v1.rs");

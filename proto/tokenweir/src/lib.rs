//! Tokenweir's own wire formats, pure: usage reports (filter to service) and the exchange token that ties them to a
//! verdict. The messages are generated from `proto/tokenweir/v1/reports.proto` and checked in; a test holds them current.

/// The messages of `tokenweir.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod v1 {
    include!("generated/tokenweir.v1.rs");
}

#[cfg(feature = "token")]
pub mod response;
#[cfg(feature = "token")]
pub mod token;

/// Version of the report format that this build writes.
pub const REPORT_VERSION: u32 = 1;

/// gRPC service and method of the reports, as the filter must name them.
pub const REPORT_SERVICE: &str = "tokenweir.v1.UsageReports";
/// See [`REPORT_SERVICE`].
pub const REPORT_METHOD: &str = "Report";

/// Dynamic metadata namespace of the verdict, written by the service and read by the filter.
pub const METADATA_NAMESPACE: &str = "io.tokenweir";
/// Key of the verdict in [`METADATA_NAMESPACE`]: the metering plan (see `proto_openai::plan`), a space, the exchange token.
/// One value, because each one that the filter asks for costs it two passages between Envoy and the VM.
pub const METADATA_VERDICT: &str = "verdict";

/// Buckets of a [`v1::GapHistogram`]: below 1 ms, 2 ms, 4 ms, … 2^16 ms, and the rest.
pub const GAP_BUCKETS: usize = 18;

/// Index of the bucket that counts a gap of `us` microseconds.
#[must_use]
pub fn gap_bucket(us: u64) -> usize {
    let ms = us / 1000;
    // 0 for below 1 ms; then one more for each doubling.
    let bits = (u64::BITS - ms.leading_zeros()) as usize;
    bits.min(GAP_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_falls_into_the_bucket_below_whose_bound_it_lies() {
        for (us, bucket) in
            [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (65_535_999, 16), (65_536_000, 17)]
        {
            assert_eq!(gap_bucket(us), bucket, "{us} us");
        }
        assert_eq!(gap_bucket(u64::MAX), GAP_BUCKETS - 1);
    }
}

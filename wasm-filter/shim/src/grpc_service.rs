//! How an upstream is named in a gRPC call.
//!
//! Envoy reads the argument as an encoded `envoy.config.core.v3.GrpcService` first, and as a bare cluster name if that
//! fails. The encoded form leaves no doubt.

/// Longest cluster name that fits the encoded form: its lengths must stay below 128, or the encoding is not valid UTF-8
/// and the SDK, which wants a `str`, cannot carry it.
const ENCODED_NAME_BYTES_MAX: usize = 125;

/// Field 1 of either message, length-delimited: `GrpcService.envoy_grpc` and `EnvoyGrpc.cluster_name`.
const FIELD_ONE: char = '\u{0a}';

/// The upstream argument for `cluster`. A longer name is passed bare: Envoy finds that it is no message, and takes it as a
/// name.
pub(crate) fn upstream(cluster: &str) -> String {
    let length = |bytes: usize| u8::try_from(bytes).map(char::from).unwrap_or_default();
    if cluster.len() > ENCODED_NAME_BYTES_MAX {
        return cluster.to_owned();
    }
    let mut argument = String::with_capacity(cluster.len() + 4);
    argument.extend([FIELD_ONE, length(cluster.len() + 2), FIELD_ONE, length(cluster.len())]);
    argument.push_str(cluster);
    argument
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_message_in_a_message() {
        assert_eq!(upstream("ext_proc").as_bytes(), b"\x0a\x0a\x0a\x08ext_proc");
        let longest = "c".repeat(ENCODED_NAME_BYTES_MAX);
        assert_eq!(upstream(&longest).as_bytes().get(..4), Some([0x0a, 127, 0x0a, 125].as_slice()));
        let longer = "c".repeat(ENCODED_NAME_BYTES_MAX + 1);
        assert_eq!(upstream(&longer), longer);
    }
}

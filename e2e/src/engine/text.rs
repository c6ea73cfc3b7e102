//! Deterministic "generation": hashes, tokens, words.

use serde_json::Value;

/// Prompt bytes that make one token.
const BYTES_PER_TOKEN: usize = 4;
/// Tokens of one prefix-cache block.
pub const BLOCK_TOKENS: u64 = 32;

/// What the engine says. Some words look like protocol, to catch a reader that searches instead of parsing.
const WORDS: [&str; 24] = [
    " the",
    " weir",
    " river",
    " flows",
    " a",
    "\n",
    " caf\u{e9}",
    " \u{4e16}\u{754c}",
    " \u{1f30a}",
    " \"quoted\"",
    " back\\slash",
    " data: [DONE]",
    " {\"usage\":{\"prompt_tokens\":999}}",
    "\r\n\r\n",
    " \"usage\":null",
    " token",
    " \t",
    " event: message_stop",
    " counts",
    "ing",
    " \"finish_reason\":\"stop\"",
    " and",
    " of",
    " water",
];

/// FNV-1a, 64 bits.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A well-mixed number from two (splitmix64).
#[must_use]
pub fn mix(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The n-th word of the answer to `seed`.
#[must_use]
pub fn word(seed: u64, n: u64) -> &'static str {
    let index = mix(seed, n) % WORDS.len() as u64;
    WORDS[usize::try_from(index).unwrap_or(0)]
}

/// Tokens of a prompt text; at least 1.
#[must_use]
pub fn tokens(text: &str) -> u64 {
    (text.len().div_ceil(BYTES_PER_TOKEN) as u64).max(1)
}

/// Hashes of the full blocks of a prompt text, each over everything before it too.
#[must_use]
pub fn blocks(text: &str) -> Vec<u64> {
    let block = BLOCK_TOKENS as usize * BYTES_PER_TOKEN;
    let mut chain = 0;
    let whole = text.as_bytes().chunks_exact(block);
    let link = |bytes: &[u8]| {
        chain = mix(hash(bytes), chain);
        chain
    };
    whole.map(link).collect()
}

/// Everything a model would read in `value`: all strings, joined in order.
pub fn collect(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => {
            out.push_str(text);
            out.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, out)),
        Value::Object(members) => members.values().for_each(|member| collect(member, out)),
        Value::Number(number) => {
            out.push_str(&number.to_string());
            out.push('\n');
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// `text` as a JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

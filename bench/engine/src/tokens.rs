//! A toy tokenizer: reversible, deterministic, about four bytes a token, and fast.
//!
//! A token is up to four ASCII bytes, or a part of a character of up to three bytes; it ends after a newline and before a
//! role marker. So the tokens of a chat are those of its parts, a longer text has the tokens of the shorter one except for
//! the last (and a role marker that was cut in two), and an answer that comes back in the next prompt gives the ids that
//! were generated. The id says the bytes, so nothing is looked up.

/// `<|im_start|>`, before a role.
pub const IM_START: u32 = 1;
/// `<|im_end|>`, after a message; also what ends an answer.
pub const IM_END: u32 = 2;

const MARKERS: [(&str, u32); 2] = [("<|im_start|>", IM_START), ("<|im_end|>", IM_END)];
const ONE: u32 = 0x100;
const TWO: u32 = 0x1_0000;
const THREE: u32 = 0x100_0000;
const FOUR: u32 = 0x1000_0000;
/// What ids that stand for nothing decode to.
const UNKNOWN: &[u8] = "\u{fffd}".as_bytes();

/// What engines say: pieces of four bytes that need no escape in JSON.
const PIECES: [[u8; 4]; 32] = [
    *b" the", *b" and", *b" for", *b" you", *b" not", *b" has", *b" its", *b" was", *b" one", *b" two",
    *b" how", *b" new", *b" day", *b" way", *b" may", *b" our", *b" out", *b" who", *b" all", *b" but",
    *b" can", *b" mil", *b" run", *b" wat", *b" dam", *b" low", *b" log", *b" set", *b" see", *b" far",
    *b" end", *b" yet",
];

/// The token of `bytes`: one to three of any kind, or four of ASCII.
#[must_use]
pub fn pack(bytes: &[u8]) -> u32 {
    match *bytes {
        [a] => ONE + u32::from(a),
        [a, b] => TWO + (u32::from(a) << 8 | u32::from(b)),
        [a, b, c] => THREE + (u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c)),
        [a, b, c, d] => FOUR + pack_plain(u32::from_be_bytes([a, b, c, d])),
        _ => 0,
    }
}

/// Appends the tokens of `text`.
pub fn encode(text: &str, out: &mut Vec<u32>) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() / 4 + 1);
    while !rest.is_empty() {
        rest = encode_plain(rest, out);
        if rest.is_empty() {
            return;
        }
        let plain = match rest.first_chunk::<4>() {
            Some(four) if is_plain(u32::from_be_bytes(*four)) => {
                out.push(FOUR + pack_plain(u32::from_be_bytes(*four)));
                rest = &rest[4..];
                continue;
            }
            _ => {
                if let Some(&(marker, id)) =
                    MARKERS.iter().find(|(marker, _)| rest.starts_with(marker.as_bytes()))
                {
                    out.push(id);
                    rest = &rest[marker.len()..];
                    continue;
                }
                piece_len(rest)
            }
        };
        out.push(pack(&rest[..plain]));
        rest = &rest[plain..];
    }
}

/// Encodes plain bytes, eight tokens at once, which the compiler makes vectors of. Returns where that ends.
fn encode_plain<'a>(mut rest: &'a [u8], out: &mut Vec<u32>) -> &'a [u8] {
    while let Some(many) = rest.first_chunk::<32>() {
        let mut words = [0; 8];
        for (word, four) in words.iter_mut().zip(many.chunks_exact(4)) {
            *word = u32::from_be_bytes([four[0], four[1], four[2], four[3]]);
        }
        if !words.iter().fold(true, |all, word| all & is_plain(*word)) {
            break;
        }
        out.extend_from_slice(&words.map(|word| FOUR + pack_plain(word)));
        rest = &rest[32..];
    }
    rest
}

/// Whether four bytes are ASCII, and neither a newline nor what a marker begins with.
fn is_plain(word: u32) -> bool {
    // Sets the high bit of some byte where one is zero.
    let zero = |word: u32| word.wrapping_sub(0x0101_0101) & !word;
    (word | zero(word ^ 0x0a0a_0a0a) | zero(word ^ 0x3c3c_3c3c)) & 0x8080_8080 == 0
}

/// Four bytes of seven bits as one number.
fn pack_plain(word: u32) -> u32 {
    (word & 0x7f) | (word >> 1 & 0x3f80) | (word >> 2 & 0x1f_c000) | (word >> 3 & 0xfe0_0000)
}

/// Bytes of the first token of `rest`, which begins with no marker.
fn piece_len(rest: &[u8]) -> usize {
    match rest[0] {
        0xf0.. => return 2,
        0xe0.. => return 3,
        // The second half of a character of four bytes, or a whole one of two.
        0x80.. => return rest.len().min(2),
        _ => {}
    }
    for (at, &byte) in rest.iter().take(4).enumerate() {
        if byte == b'\n' {
            return at + 1;
        }
        let marked = byte == b'<' && MARKERS.iter().any(|(text, _)| rest[at..].starts_with(text.as_bytes()));
        if at > 0 && (byte >= 0x80 || marked) {
            return at;
        }
    }
    rest.len().min(4)
}

/// Appends the bytes of `token`.
pub fn decode_one(token: u32, out: &mut Vec<u8>) {
    if let Some((text, _)) = MARKERS.iter().find(|(_, id)| *id == token) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let [a, b, c, d] = token.to_be_bytes();
    match token {
        0x100..=0x1ff => out.push(d),
        0x1_0000..=0x1_ffff => out.extend_from_slice(&[c, d]),
        0x100_0000..=0x1ff_ffff => out.extend_from_slice(&[b, c, d]),
        0x1000_0000..=0x1fff_ffff => {
            let bits = u32::from_be_bytes([a & 0x0f, b, c, d]);
            let byte = |shift: u32| ((bits >> shift) & 0x7f) as u8;
            out.extend_from_slice(&[byte(21), byte(14), byte(7), byte(0)]);
        }
        _ => out.extend_from_slice(UNKNOWN),
    }
}

/// The text of `tokens`; what is no UTF-8 is replaced.
#[must_use]
pub fn decode(tokens: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len() * 4);
    tokens.iter().for_each(|&token| decode_one(token, &mut bytes));
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Mixes two words into one, each bit depending on each.
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(u128::from(b ^ 0xd1b5_4a32_d192_ed03));
    let folded = (product as u64) ^ ((product >> 64) as u64);
    (folded ^ (folded >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23)
}

/// A hash of `tokens` after `parent`.
#[must_use]
pub fn chain(parent: u64, tokens: &[u32]) -> u64 {
    tokens.chunks(2).fold(mix(parent, tokens.len() as u64), |hash, pair| {
        let second = pair.get(1).copied().unwrap_or_default();
        mix(hash, u64::from(pair[0]) << 32 | u64::from(second))
    })
}

/// Tokens at both ends of a prompt that its answer depends on.
const SEEN: usize = 64;

/// What the answer to `prompt` is drawn from: its ends and its length, so that long prompts cost no more than short ones.
#[must_use]
pub fn seed(prompt: &[u32], choice: u32) -> u64 {
    let (first, last) = (&prompt[..prompt.len().min(SEEN)], &prompt[prompt.len().saturating_sub(SEEN)..]);
    chain(chain(mix(u64::from(choice), prompt.len() as u64), first), last)
}

/// The bytes of token `index` of the answer of `seed`.
#[must_use]
pub fn piece(seed: u64, index: u32) -> &'static [u8; 4] {
    &PIECES[(mix(seed, u64::from(index)) % PIECES.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        encode(text, &mut out);
        out
    }

    #[test]
    fn four_bytes_a_token_and_markers() {
        assert_eq!(tokens("This program is free software").len(), 8);
        let chat = tokens("<|im_start|>user\nhello<|im_end|>\n");
        assert_eq!((chat[0], chat[chat.len() - 2]), (IM_START, IM_END));
        assert_eq!(decode(&chat), "<|im_start|>user\nhello<|im_end|>\n");
        // The parts of a chat encode as the whole does.
        assert_eq!(tokens(&"a".repeat(64)), vec![pack(b"aaaa"); 16]);
        let parts = ["<|im_start|>", "user\n", "hello", "<|im_end|>", "\n"].map(tokens).concat();
        assert_eq!(chat, parts);
    }

    #[test]
    fn what_was_generated_encodes_to_the_same_ids() {
        let generated: Vec<u32> = (0..100).map(|index| pack(piece(7, index))).collect();
        assert_eq!(tokens(&decode(&generated)), generated);
        assert_ne!(piece(7, 0), piece(7, 1));
    }

    proptest! {
        #[test]
        fn reversible(text in "\\PC{0,40}|[a-z<|\\n]{0,40}|[a-z ]{0,130}") {
            prop_assert_eq!(decode(&tokens(&text)), text);
        }

        #[test]
        fn a_prefix_keeps_its_tokens(text in "[a-zé€😀\\n ]{0,60}", more in "[a-zé€😀\\n ]{0,20}") {
            let (short, long) = (tokens(&text), tokens(&format!("{text}{more}")));
            let kept = short.len().saturating_sub(1);
            prop_assert_eq!(&short[..kept], &long[..kept]);
        }
    }
}

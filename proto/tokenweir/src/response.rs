//! Ids of responses that an engine keeps. The service gives them, so that any replica finds the engine that keeps a response
//! by the id alone, also after a restart: no table of responses has to be kept or shared.
//!
//! Text form: `resp_`, 32 hexadecimal digits of the exchange, 16 of a tag: HMAC-SHA-256 over exchange, tenant, pool and
//! endpoint, cut to 8 bytes. The id names no endpoint; who knows the keys tries those that there are. Without the key no id
//! can be made, and for another tenant, pool or endpoint an id is as good as none.

use std::net::SocketAddr;

use hmac::Mac as _;

use crate::token::{ExchangeId, KeyRing};

const PREFIX: &str = "resp_";
/// Bytes of a tag. One guess in 2^64 hits, and what it hits is a response of the guesser's own tenant.
const TAG_BYTES: usize = 8;
/// Sets these tags apart from those of tokens, which begin with `tw1.`.
const DOMAIN: &[u8] = b"response\0";

/// The id of a response, read. Whether it is genuine only a [`KeyRing`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseId {
    /// The exchange that the response was made in.
    pub exchange: ExchangeId,
    tag: [u8; TAG_BYTES],
}

/// Where a response is kept, and whose it is: what its tag vouches for.
#[derive(Clone, Copy, Debug)]
pub struct Keeper<'a> {
    /// Who asked for the response.
    pub tenant: &'a str,
    /// Pool of the endpoint.
    pub pool: &'a str,
    /// The endpoint that was picked.
    pub endpoint: SocketAddr,
}

impl ResponseId {
    /// Reads an id as [`KeyRing::name_response`] writes it, to the letter: an engine compares letters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if digits.len() != 32 + 2 * TAG_BYTES || !digits.bytes().all(lower) {
            return None;
        }
        let (exchange, tag) = digits.split_at_checked(32)?;
        let tag = u64::from_str_radix(tag, 16).ok()?.to_be_bytes();
        Some(Self { exchange: ExchangeId::from_hex(exchange)?, tag })
    }
}

impl KeyRing {
    /// The id for the response of `exchange`, tagged with the first key.
    #[must_use]
    pub fn name_response(&self, exchange: ExchangeId, keeper: Keeper<'_>) -> String {
        // A ring has a key; without one the tag would be one that nothing matches.
        let tag = self.macs().next().map(|mac| signed(mac, exchange, keeper).finalize().into_bytes());
        let head = tag.as_ref().and_then(|tag| tag.first_chunk()).copied().unwrap_or([0; TAG_BYTES]);
        format!("{PREFIX}{exchange}{:016x}", u64::from_be_bytes(head))
    }

    /// Whether `id` was given to a response of this keeper, by any key of the ring. Compared in constant time.
    #[must_use]
    pub fn is_kept_by(&self, id: ResponseId, keeper: Keeper<'_>) -> bool {
        self.macs().any(|mac| signed(mac, id.exchange, keeper).verify_truncated_left(&id.tag).is_ok())
    }
}

fn signed<M: hmac::Mac>(mac: M, exchange: ExchangeId, keeper: Keeper<'_>) -> M {
    let mut mac = mac.chain_update(DOMAIN).chain_update(exchange.0);
    // With their lengths, so that no two keepers make the same bytes.
    for name in [keeper.tenant, keeper.pool] {
        let length = u64::try_from(name.len()).unwrap_or(u64::MAX);
        mac = mac.chain_update(length.to_be_bytes()).chain_update(name);
    }
    mac.chain_update(keeper.endpoint.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::token::KEY_BYTES_MIN;

    const EXCHANGE: ExchangeId = ExchangeId([0xa7; 16]);

    fn ring(ids: &[&str]) -> KeyRing {
        let secrets: Vec<_> = ids.iter().map(|id| (*id, id.repeat(KEY_BYTES_MIN).into_bytes())).collect();
        KeyRing::new(secrets.iter().map(|(id, s)| (*id, s.as_slice()))).expect("a good ring")
    }

    fn keeper() -> Keeper<'static> {
        Keeper { tenant: "team-a", pool: "a", endpoint: ([10, 0, 0, 1], 8000).into() }
    }

    fn read(text: &str) -> ResponseId {
        ResponseId::parse(text).expect("an id")
    }

    #[test]
    fn an_id_tells_its_keeper_and_nobody_else() {
        let ring = ring(&["k1"]);
        let text = ring.name_response(EXCHANGE, keeper());
        assert!(text.starts_with("resp_a7a7") && text.len() == 5 + 48, "{text}");
        let id = read(&text);
        assert_eq!(id.exchange, EXCHANGE);
        assert!(ring.is_kept_by(id, keeper()));
        for other in [
            Keeper { tenant: "team-b", ..keeper() },
            Keeper { pool: "b", ..keeper() },
            Keeper { endpoint: ([10, 0, 0, 1], 8001).into(), ..keeper() },
            Keeper { tenant: "team-", pool: "aa", ..keeper() },
        ] {
            assert!(!ring.is_kept_by(id, other), "{other:?}");
        }
        let moved = ResponseId { exchange: ExchangeId([0xa8; 16]), ..id };
        assert!(!ring.is_kept_by(moved, keeper()), "the tag of another exchange");
    }

    #[test]
    fn an_old_key_still_finds_while_it_is_in_the_ring() {
        let id = read(&ring(&["old"]).name_response(EXCHANGE, keeper()));
        assert!(ring(&["new", "old"]).is_kept_by(id, keeper()));
        assert!(!ring(&["new"]).is_kept_by(id, keeper()));
    }

    #[test]
    fn only_what_we_write_is_read() {
        let text = ring(&["k1"]).name_response(EXCHANGE, keeper());
        for other in [
            String::new(),
            "resp_".into(),
            text.to_uppercase(),
            text.replace("a7", "A7"),
            format!("{text}0"),
            text.chars().take(52).collect(),
            text.replace("resp_", "chat_"),
            text.replace("a7a7", "+7a7"),
            format!("resp_{}", "é".repeat(24)),
        ] {
            assert_eq!(ResponseId::parse(&other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn no_guess_is_an_id(digits in "[0-9a-f]{48}") {
            let id = read(&format!("resp_{digits}"));
            prop_assert!(!ring(&["k1", "k2"]).is_kept_by(id, keeper()));
        }

        #[test]
        fn no_text_panics(text in "(resp_)?.{0,60}") {
            prop_assert_eq!(ResponseId::parse(&text), None);
        }
    }
}

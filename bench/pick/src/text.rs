//! Prompts: text that no two seeds share, of a wanted number of tokens.

use fastrand::Rng;

/// Bytes of a token of the simulated engines: four plain bytes make one.
pub const TOKEN_BYTES: usize = 4;

/// Lower-case words of `tokens` tokens, drawn from `rng`. Two draws share no prefix that is worth caching.
#[must_use]
pub fn words(rng: &mut Rng, tokens: usize) -> String {
    let letter =
        |at: usize, rng: &mut Rng| if at.is_multiple_of(TOKEN_BYTES) { ' ' } else { rng.lowercase() };
    (0..tokens * TOKEN_BYTES).map(|at| letter(at, rng)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_tokens_as_asked_and_different_for_every_seed() {
        let draw = |seed| words(&mut Rng::with_seed(seed), 25);
        assert_eq!(draw(1).len(), 100);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1)[..8], draw(2)[..8]);
    }
}

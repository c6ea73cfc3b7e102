//! From rounds to one number: ratios within a round, where both sides had the same neighbours, then their median.

/// The middle value, or the mean of the two; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    if sorted.len().is_multiple_of(2) && half > 0 { f64::midpoint(at(half - 1), at(half)) } else { at(half) }
}

/// `ours` over `theirs`, round by round.
pub fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(one, other)| one / other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_odd_even_and_nothing() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median(&[]).is_nan());
        assert!((median(&ratios(&[1.0, 4.0, 9.0], &[2.0, 4.0, 6.0])) - 1.0).abs() < 1e-12);
    }
}

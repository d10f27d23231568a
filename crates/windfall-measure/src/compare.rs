//! Whether two groups of measurements differ.
//!
//! **Purpose.** The Mann–Whitney rank test: it needs no assumption about the distribution of times.
//!
//! **Invariants.** The result is the p-value: the probability of a difference at least this large if there is no real
//! difference (test: `equal_groups_are_not_distinguished_and_a_shift_is_found`).

/// Returns the probability that `after` is this much larger than `before` by accident; 1 for groups of fewer than 8.
pub fn p_value(before: &[f64], after: &[f64]) -> f64 {
    if before.len() < 8 || after.len() < 8 {
        return 1.0;
    }
    let mut all: Vec<(f64, bool)> =
        before.iter().map(|&x| (x, false)).chain(after.iter().map(|&x| (x, true))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut rank_sum, mut tied) = (0.0, 0.0);
    // Tied measurements share the mean of their ranks.
    let mut before_group = 0.0;
    for group in all.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()) {
        let n = group.len() as f64;
        let rank = before_group + f64::midpoint(n, 1.0);
        before_group += n;
        rank_sum += rank * group.iter().filter(|g| g.1).count() as f64;
        tied += n * n * n - n;
    }
    let (m, n) = (before.len() as f64, after.len() as f64);
    let u = rank_sum - n * (n + 1.0) / 2.0;
    let total = m + n;
    let variance = m * n / 12.0 * (total + 1.0 - tied / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (u - m * n / 2.0 - 0.5) / variance.sqrt();
    upper_tail(z)
}

/// Returns the probability that a standard normal variable exceeds `z`.
fn upper_tail(z: f64) -> f64 {
    // Abramowitz and Stegun 26.2.17: the error is below 1e-7.
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_53
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if z >= 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn draw(n: usize, seed: u64, more: f64) -> Vec<f64> {
        let mut random = Random::new(seed, 0);
        (0..n).map(|_| random.unit() + more).collect()
    }

    #[test]
    fn the_tail_of_the_normal_distribution() {
        for (z, tail) in [(0.0, 0.5), (1.645, 0.05), (2.326, 0.01), (-1.645, 0.95)] {
            assert!((upper_tail(z) - tail).abs() < 1e-4, "{z}");
        }
    }

    #[test]
    fn equal_groups_are_not_distinguished_and_a_shift_is_found() {
        assert!(p_value(&draw(100, 1, 0.0), &draw(100, 2, 0.0)) > 0.01);
        assert!(p_value(&draw(100, 1, 0.0), &draw(100, 2, 0.3)) < 0.001);
        assert!(p_value(&draw(100, 1, 0.3), &draw(100, 2, 0.0)) > 0.99);
        assert!(p_value(&[1.0; 50], &[1.0; 50]) > 0.4, "nothing but ties");
        assert!(p_value(&[1.0; 3], &[9.0; 3]) >= 1.0, "too few");
    }
}

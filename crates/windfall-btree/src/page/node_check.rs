//! The exact check of one node.
//!
//! **Purpose.** Checks everything that the layout guarantees about a single page, for `check` and for tests.
//!
//! **Invariants.** Only reads. A damaged page causes an error, never a panic, whatever it holds.

use super::{
    Page, PageType,
    node::{GARBAGE, HEAP, Node, key_limit},
    node_build::prefix_of,
    node_change::{checked, checked_slot},
};
use crate::sync::{Bug, planted};

/// Checks that the page's header fits its type, without looking at its entries. Done for any page, whenever it is read
/// from disk or written to it.
///
/// # Errors
/// A description of the contradiction.
pub fn check_header(page: Page<'_>) -> Result<(), &'static str> {
    let Some(kind) = PageType::from_u8(page.page_type()) else { return Err("it is of no known type") };
    if matches!(kind, PageType::Leaf | PageType::Inner) {
        checked(page, kind == PageType::Leaf)?;
    }
    if (kind == PageType::Inner) == (page.level() == 0) {
        return Err("its level does not fit its type");
    }
    Ok(())
}

/// Checks that the page is a node with consistent parts.
///
/// # Errors
/// A description of the contradiction.
pub fn validate(page: Page<'_>) -> Result<Node<'_>, &'static str> {
    let leaf = page.page_type() == PageType::Leaf as u8;
    let node = checked(page, leaf)?;
    if leaf != (node.level() == 0) {
        return Err("its level does not fit its type");
    }
    let mut lower = Vec::new();
    let mut upper = Vec::new();
    node.lower_into(&mut lower);
    let upper = node.upper_into(&mut upper).then_some(&upper[..]);
    let limit = key_limit(page.len());
    if lower.len() > limit || upper.is_some_and(|upper| upper.len() > limit || upper <= &lower[..]) {
        return Err("its fences are out of order or too long");
    }
    if node.prefix_len() != prefix_of(&lower, upper) {
        return Err("its prefix is not that of its fences");
    }
    let mut last: Option<Vec<u8>> = None;
    let mut key = Vec::new();
    let mut extents = Vec::with_capacity(node.count());
    for n in 0..node.count() {
        let (slot, words) = checked_slot(node, n)?;
        extents.push((slot.record(), words * 8));
        key.clear();
        node.key_into(n, &mut key);
        if slot.head() != node.head_with(n, node.skip()) {
            return Err("a slot's head is not that of its key");
        }
        if n >= node.first_slot() && slot.suffix_len() < node.skip() {
            return Err("a key does not begin with what all share");
        }
        let is_outside = key < lower || upper.is_some_and(|upper| &key[..] >= upper);
        if is_outside && !planted(Bug::KeyOutsideTheFences) {
            return Err("a key lies outside the fences");
        }
        if last.as_ref().is_some_and(|last| *last >= key) {
            return Err("its keys are out of order");
        }
        if n == 0 && !leaf && key != lower {
            return Err("its first child does not begin at its lower fence");
        }
        last.get_or_insert_default().clone_from(&key);
    }
    if node.skip() > 0 && node.best_skip() < node.skip() {
        return Err("its keys do not share what they should");
    }
    if !leaf && node.count() == 0 {
        return Err("an inner node without a child");
    }
    extents.sort_unstable();
    if extents.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        return Err("two records overlap");
    }
    let live: usize = extents.iter().map(|(_, len)| len / 8).sum();
    if live + usize::from(page.u16(GARBAGE)) != usize::from(page.u16(HEAP)) {
        return Err("its garbage is miscounted");
    }
    Ok(node)
}

//! [`PageTable`]: the KV cache pages of a sequence.

use std::ops::Deref;
use std::sync::Arc;

/// The KV cache pages of a sequence, in order. Clones share them, so that a step of a long sequence copies none; they are
/// copied where a table is extended while there are others.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    all: Arc<Vec<u32>>,
    /// Number of them that are its own.
    len: usize,
    /// No page is larger.
    most: u32,
}

impl PageTable {
    /// The first pages, all of them if there are no more.
    pub fn first(&self, len: usize) -> PageTable {
        PageTable { len: len.min(self.len), ..self.clone() }
    }

    /// No page is larger; `None` if there are none. It is kept as pages come, because a step has no time to look for it.
    pub(crate) fn bound(&self) -> Option<u32> {
        (self.len > 0).then_some(self.most)
    }
}

impl Extend<u32> for PageTable {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, pages: I) {
        let mut pages = pages.into_iter().peekable();
        if pages.peek().is_none() {
            return;
        }
        let (all, len) = (Arc::make_mut(&mut self.all), self.len);
        // What follows belongs to a table with more pages.
        all.truncate(len);
        all.extend(pages);
        self.most = all[len..].iter().copied().fold(self.most, u32::max);
        self.len = all.len();
    }
}

impl From<Vec<u32>> for PageTable {
    fn from(all: Vec<u32>) -> PageTable {
        let most = all.iter().copied().max().unwrap_or(0);
        PageTable { len: all.len(), all: Arc::new(all), most }
    }
}

impl FromIterator<u32> for PageTable {
    fn from_iter<I: IntoIterator<Item = u32>>(pages: I) -> PageTable {
        Vec::from_iter(pages).into()
    }
}

impl Deref for PageTable {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.all[..self.len]
    }
}

impl PartialEq for PageTable {
    /// Clones are equal without a look at each page.
    fn eq(&self, other: &PageTable) -> bool {
        let shared = Arc::ptr_eq(&self.all, &other.all) && self.len == other.len;
        shared || self[..] == other[..]
    }
}

impl Eq for PageTable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_share_pages_are_extended_apart() {
        let mut whole = PageTable::from(vec![3, 1, 4]);
        let mut part = whole.first(2);
        assert!(Arc::ptr_eq(&whole.all, &part.all));
        whole.extend([9]);
        assert_eq!((&whole[..], &part[..]), (&[3, 1, 4, 9][..], &[3, 1][..]));
        assert_eq!(whole.first(8), whole);
        part.extend([5, 6]);
        assert_eq!((&whole[..], &part[..]), (&[3, 1, 4, 9][..], &[3, 1, 5, 6][..]));
        // Nothing is copied once the others are gone.
        drop(part);
        let before = Arc::as_ptr(&whole.all);
        whole.extend([]);
        whole.extend([2]);
        assert_eq!((Arc::as_ptr(&whole.all), &whole[..]), (before, &[3, 1, 4, 9, 2][..]));
    }

    #[test]
    fn no_page_is_larger_than_the_bound() {
        let mut table = PageTable::default();
        assert_eq!((table.bound(), table.first(0).bound()), (None, None));
        for (pages, bound) in [(vec![7, u32::MAX - 1, 3], u32::MAX - 1), (vec![u32::MAX, 0], u32::MAX)] {
            table.extend(pages.clone());
            assert_eq!((table.bound(), PageTable::from(pages).bound()), (Some(bound), Some(bound)));
        }
        assert!(table.first(1).bound() >= Some(7));
        assert_eq!(table.first(0).bound(), None);
    }
}

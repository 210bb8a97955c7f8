//! [`Trie`]: the tokens that are prefixes of a text.

/// A byte trie. Tokens end at nodes.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    byte: u8,
    /// The token that ends here.
    id: Option<u32>,
    /// The child nodes, sorted by byte: the first's index and the count.
    first: u32,
    count: u16,
}

/// A position in the trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(u32);

impl Trie {
    /// `tokens` need not be sorted; of two with equal text the later wins.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Trie {
        let mut tokens: Vec<(&str, u32)> = tokens.collect();
        tokens.sort_by_key(|(text, _)| *text);
        let mut nodes = vec![Node { byte: 0, id: None, first: 0, count: 0 }];
        // The tokens below each node of one depth: a range of tokens with a common prefix.
        let mut level = vec![(0, 0..tokens.len())];
        let mut depth = 0;
        while !level.is_empty() {
            let mut below = Vec::new();
            for (at, range) in level {
                let mut start = range.start;
                while start < range.end && tokens[start].0.len() == depth {
                    nodes[at].id = Some(tokens[start].1);
                    start += 1;
                }
                nodes[at].first = nodes.len() as u32;
                while start < range.end {
                    let byte = tokens[start].0.as_bytes()[depth];
                    let len = tokens[start..range.end].partition_point(|(t, _)| t.as_bytes()[depth] == byte);
                    below.push((nodes.len(), start..start + len));
                    nodes.push(Node { byte, id: None, first: 0, count: 0 });
                    nodes[at].count += 1;
                    start += len;
                }
            }
            level = below;
            depth += 1;
        }
        Trie { nodes }
    }

    pub(super) const ROOT: At = At(0);

    pub(super) fn step(&self, at: At, byte: u8) -> Option<At> {
        let node = self.nodes[at.0 as usize];
        let first = node.first as usize;
        let below = &self.nodes[first..first + usize::from(node.count)];
        let found = below.binary_search_by_key(&byte, |node| node.byte).ok()?;
        Some(At((first + found) as u32))
    }

    /// The position after a text.
    pub(super) fn walk(&self, at: At, text: &str) -> Option<At> {
        text.bytes().try_fold(at, |at, byte| self.step(at, byte))
    }

    /// The tokens that are prefixes of `text`, shortest first: length and id.
    pub(super) fn prefixes<'a>(&'a self, from: At, text: &'a str) -> impl Iterator<Item = (usize, u32)> + 'a {
        let steps = text.bytes().scan(from, |at, byte| {
            *at = self.step(*at, byte)?;
            Some(self.nodes[at.0 as usize].id)
        });
        steps.zip(1..).filter_map(|(id, len)| Some((len, id?)))
    }
}

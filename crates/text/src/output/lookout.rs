//! [`Lookout`]: finds markers in text.

use super::held::{Match, View};
use super::step::Section;

/// The meaning of a marker.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mark {
    /// Reasoning begins.
    Think,
    /// Reasoning ends.
    Close,
    /// Calls begin.
    Calls(&'static Section),
    /// The answer begins or ends.
    Frame,
    /// The header of a channel begins.
    Header,
    /// The text of a channel ends.
    Stop,
}

/// The markers that may come in a part of the text.
#[derive(Debug, Clone, Default)]
pub(super) struct Lookout {
    markers: Vec<(&'static str, Mark)>,
    /// First bytes of the markers.
    first: Vec<u8>,
}

/// Result of looking at a place.
pub(super) enum Seen {
    /// A marker of this length.
    Mark(Mark, usize),
    /// No marker.
    Nothing,
    /// More text is needed.
    Partial,
}

impl Lookout {
    pub(super) fn new(markers: Vec<(&'static str, Mark)>) -> Lookout {
        let mut first: Vec<u8> = markers.iter().filter_map(|(text, _)| text.bytes().next()).collect();
        first.sort_unstable();
        first.dedup();
        Lookout { markers, first }
    }

    /// True if a marker may begin with this byte.
    pub(super) fn may_begin(&self, byte: u8) -> bool {
        self.first.contains(&byte)
    }

    /// Looks at a place. Of several markers the longest counts.
    pub(super) fn at(&self, view: View<'_>, at: usize) -> Seen {
        let mut longest: Option<(Mark, usize)> = None;
        for (text, mark) in &self.markers {
            match view.has(at, text) {
                Match::Partial => return Seen::Partial,
                Match::Yes if longest.is_none_or(|(_, length)| length < text.len()) => {
                    longest = Some((*mark, text.len()));
                }
                Match::Yes | Match::No => {}
            }
        }
        longest.map_or(Seen::Nothing, |(mark, length)| Seen::Mark(mark, length))
    }
}

//! [`of_files`]: a digest of whole files, to tell one model from another whatever they are called.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::map::Mapping;

/// Bytes that are hashed in one go; the digest is one of the digests of such pieces, so that all cores can work on it.
const PIECE: usize = 16 << 20;

/// SHA-256 digest of all bytes of some files, in this order. Their pages are released as they have been read.
pub fn of_files(files: &[&Mapping]) -> Result<[u8; 32]> {
    let pieces = files.iter().flat_map(|file| pieces(file.len()).map(move |range| (*file, range)));
    let pieces: Vec<(&Mapping, Range<usize>)> = pieces.collect();
    let next = AtomicUsize::new(0);
    let hash = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((file, range)) = pieces.get(at) else { return done };
            let digest: [u8; 32] = Sha256::digest(&file[range.clone()]).into();
            file.release(range.clone());
            done.push((at, digest));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    let mut digests = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(hash)).collect();
        let own = hash();
        // A thread that panics would leave pieces out; then its panic goes on here.
        let join = |other: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        own.into_iter().chain(others.into_iter().flat_map(join)).collect::<Vec<_>>()
    });
    digests.sort_unstable();
    files.iter().try_for_each(|file| file.intact())?;
    let lengths =
        files.iter().fold(Sha256::new(), |all, file| all.chain_update((file.len() as u64).to_le_bytes()));
    let all = digests.into_iter().fold(lengths, |all, (_, digest)| all.chain_update(digest));
    Ok(all.finalize().into())
}

/// SHA-256 digest of a text.
pub fn of_text(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Ranges that a file is hashed in.
fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(PIECE).map(move |start| start..len.min(start + PIECE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_every_byte_and_on_where_files_end() {
        let held = |bytes: Vec<u8>| Mapping::held(std::path::Path::new("test"), bytes);
        let of = |files: &[Vec<u8>]| {
            let files: Vec<Mapping> = files.iter().cloned().map(held).collect();
            of_files(&files.iter().collect::<Vec<_>>()).unwrap()
        };
        let bytes: Vec<u8> = (0..2 * PIECE + 5).map(|i| (i % 251) as u8).collect();
        let whole = of(std::slice::from_ref(&bytes));
        assert_eq!(whole, of(std::slice::from_ref(&bytes)));
        for at in [0, PIECE - 1, PIECE, 2 * PIECE + 4] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(whole, of(&[other]), "{at}");
        }
        let (a, b) = bytes.split_at(PIECE);
        assert_ne!(whole, of(&[a.to_vec(), b.to_vec()]));
        assert_ne!(of(&[a.to_vec(), b.to_vec()]), of(&[b.to_vec(), a.to_vec()]));
        // By the definition, for a file of two pieces.
        let lengths = Sha256::new().chain_update((bytes.len() as u64).to_le_bytes());
        let want = bytes.chunks(PIECE).fold(lengths, |all, piece| all.chain_update(Sha256::digest(piece)));
        assert_eq!(whole[..], want.finalize()[..]);
        assert_eq!(of(&[Vec::new()]), <[u8; 32]>::from(Sha256::digest([0; 8])));
    }
}

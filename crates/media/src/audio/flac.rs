//! FLAC files without metadata: tags, pictures and tables are dropped, so that no decoder has to trust their lengths.

use std::io::{Cursor, Read};

use super::{AudioError, Bytes};

/// Bytes of the STREAMINFO block.
const INFO: usize = 34;

/// The same file with STREAMINFO as its only metadata block.
pub(super) fn without_tags(mut bytes: Bytes) -> Result<impl Read + Send + Sync, AudioError> {
    let cut = |_| AudioError::Bad("it is damaged: its head is cut short".into());
    let mut mark = [0; 4];
    bytes.read_exact(&mut mark).map_err(cut)?;
    let mut info = None;
    loop {
        let mut head = [0; 4];
        bytes.read_exact(&mut head).map_err(cut)?;
        let len = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
        if head[0] & 0x7f == 0 && len == INFO && info.is_none() {
            let mut block = [0; INFO];
            bytes.read_exact(&mut block).map_err(cut)?;
            info = Some(block);
        } else {
            std::io::copy(&mut bytes.by_ref().take(len as u64), &mut std::io::sink())?;
        }
        if head[0] & 0x80 != 0 {
            break;
        }
    }
    let info =
        info.ok_or_else(|| AudioError::Bad("it is damaged: it does not say what it is like".into()))?;
    let head = [&b"fLaC"[..], &[0x80, 0, 0, INFO as u8], &info].concat();
    Ok(Cursor::new(head).chain(bytes))
}

//! Modules as the program holds them: packed by `build.rs`.

use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

/// The unpacker's own memory is the dictionary, which is as large as what was packed.
const MOST_KIB: u32 = 1 << 16;

/// A file for each module, packed one behind the other as one stream, since they are much alike. Unpacking takes a tenth of a
/// second, once, and only where there is a device.
struct Archive {
    packed: &'static [u8],
    /// Of each module where its file ends, in order.
    ends: &'static [(&'static str, usize)],
    unpacked: OnceLock<Vec<u8>>,
}

include!(concat!(env!("OUT_DIR"), "/packed.rs"));

impl Archive {
    const fn new(packed: &'static [u8], ends: &'static [(&'static str, usize)]) -> Archive {
        Archive { packed, ends, unpacked: OnceLock::new() }
    }

    fn has(&self, module: &str) -> bool {
        self.ends.iter().any(|(name, _)| *name == module)
    }

    /// A module's file, and a zero behind it, by which a driver knows where PTX ends. None if there is no such module.
    fn file(&self, module: &str) -> Option<Vec<u8>> {
        let place = self.ends.iter().position(|(name, _)| *name == module)?;
        let begin = place.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let file = self.unpacked.get_or_init(|| self.unpack()).get(begin..self.ends[place].1)?;
        Some([file, &[0]].concat())
    }

    /// All files; as many as can be had of an archive that is damaged.
    fn unpack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.ends.last().map_or(0, |(_, end)| *end));
        if let Ok(mut reader) = LzmaReader::new_mem_limit(self.packed, MOST_KIB, None) {
            // What it has given so far is right, and the rest will be missed.
            let _ = reader.read_to_end(&mut bytes);
        }
        bytes
    }
}

/// Forms of a module that a device of this compute capability may take, the best first: what was assembled for it, and PTX. None if
/// there is no such module.
pub(crate) fn images(module: &str, capability: (u32, u32)) -> impl Iterator<Item = Vec<u8>> {
    let cubins = CUBINS.iter().filter(|(_, archive)| archive.has(module));
    let cubin = fitting(cubins, capability).map(|(_, archive)| archive);
    cubin.into_iter().chain([&PTX]).filter_map(move |archive| archive.file(module))
}

/// The newest cubin that runs on a device: one for its major version, and for no newer minor one.
fn fitting<'a, T>(
    cubins: impl Iterator<Item = &'a (u32, T)>,
    (major, minor): (u32, u32),
) -> Option<&'a (u32, T)> {
    let runs = |of: &&(u32, T)| of.0 / 10 == major && of.0 % 10 <= minor;
    cubins.filter(runs).max_by_key(|(architecture, _)| *architecture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::table;

    #[test]
    fn every_module_unpacks_to_its_ptx() {
        for module in table::MODULES {
            let images: Vec<_> = images(module.name, (8, 0)).collect();
            let ptx = images.last().unwrap();
            let text = std::str::from_utf8(ptx).unwrap();
            for entry in module.entries {
                assert!(text.contains(&format!(".entry {}(", entry.name)), "{}", entry.name);
            }
            assert!(text.ends_with('\0'));
        }
        assert_eq!(images("nothing", (8, 0)).count(), 0);
    }

    #[test]
    fn a_cubin_runs_on_its_major_version_from_its_minor_on() {
        let cubins = [80, 86, 89, 90, 100, 120].map(|of| (of, ()));
        let of = |capability| fitting(cubins.iter(), capability).map(|(of, _)| *of);
        assert_eq!([of((8, 0)), of((8, 6)), of((8, 7)), of((8, 9))], [80, 86, 86, 89].map(Some));
        assert_eq!([of((9, 0)), of((10, 3)), of((12, 1))], [90, 100, 120].map(Some));
        assert_eq!([of((7, 5)), of((11, 0)), of((13, 0))], [None; 3]);
    }
}

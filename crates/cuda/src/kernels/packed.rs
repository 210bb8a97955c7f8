//! Modules as the program holds them: deflated by `build.rs`.

/// A file, packed.
pub(crate) struct Bytes {
    /// Bytes of the file.
    len: usize,
    packed: &'static [u8],
}

/// A module's PTX, and what a release has assembled of it: by architecture, such as 90.
struct Packed {
    module: &'static str,
    ptx: Bytes,
    cubins: &'static [(u32, Bytes)],
}

const PACKED: &[Packed] = include!(concat!(env!("OUT_DIR"), "/packed.rs"));

impl Bytes {
    /// The file, and a zero behind it, by which a driver knows where PTX ends.
    pub(crate) fn unpack(&self) -> Option<Vec<u8>> {
        let mut bytes = miniz_oxide::inflate::decompress_to_vec_with_limit(self.packed, self.len).ok()?;
        bytes.push(0);
        Some(bytes)
    }
}

/// Forms of a module that a device of this compute capability may take, the best first: what was assembled for it, and PTX. None if
/// there is no such module.
pub(crate) fn images(module: &str, capability: (u32, u32)) -> impl Iterator<Item = &'static Bytes> {
    let found = PACKED.iter().find(|packed| packed.module == module);
    let cubin = found.and_then(|packed| fitting(packed.cubins, capability));
    cubin.into_iter().chain(found.map(|packed| &packed.ptx))
}

/// The newest cubin that runs on a device: one for its major version, and for no newer minor one.
fn fitting<T>(cubins: &[(u32, T)], (major, minor): (u32, u32)) -> Option<&T> {
    let runs = |of: &&(u32, T)| of.0 / 10 == major && of.0 % 10 <= minor;
    cubins.iter().filter(runs).max_by_key(|(architecture, _)| *architecture).map(|(_, of)| of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::table;

    #[test]
    fn every_module_unpacks_to_its_ptx() {
        for module in table::MODULES {
            let images: Vec<_> = images(module.name, (8, 0)).collect();
            let ptx = images.last().unwrap().unpack().unwrap();
            let text = std::str::from_utf8(&ptx).unwrap();
            for entry in module.entries {
                assert!(text.contains(&format!(".entry {}(", entry.name)), "{}", entry.name);
            }
            assert!(text.ends_with('\0'));
        }
        assert_eq!(images("nothing", (8, 0)).count(), 0);
    }

    #[test]
    fn a_cubin_runs_on_its_major_version_from_its_minor_on() {
        let cubins = [80, 86, 89, 90, 100, 120].map(|of| (of, of));
        let of = |capability| fitting(&cubins, capability).copied();
        assert_eq!([of((8, 0)), of((8, 6)), of((8, 7)), of((8, 9))], [80, 86, 86, 89].map(Some));
        assert_eq!([of((9, 0)), of((10, 3)), of((12, 1))], [90, 100, 120].map(Some));
        assert_eq!([of((7, 5)), of((11, 0)), of((13, 0))], [None; 3]);
    }
}

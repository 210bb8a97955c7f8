//! [`Identity`] of a device, the same through every interface.

/// Identity of a device. A GPU may be reached through two interfaces, each of which numbers its devices for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its UUID, which drivers of one vendor agree on.
    pub uuid: Option<[u8; 16]>,
    /// Its place on the bus, such as `0000:65:00.0`.
    pub pci: Option<String>,
}

impl Identity {
    /// True if both are of one device. The place on the bus decides where a driver gives no UUID: instances of a GPU that is in MIG mode
    /// share their place, and have UUIDs of their own.
    pub(crate) fn is(&self, other: &Identity) -> bool {
        match (self.uuid, other.uuid) {
            (Some(one), Some(other)) => one == other,
            // Digits are hexadecimal, in either case.
            _ => {
                matches!((&self.pci, &other.pci), (Some(one), Some(other)) if one.eq_ignore_ascii_case(other))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_apart() {
        let device = |uuid: Option<u8>, pci: Option<&str>| Identity {
            uuid: uuid.map(|n| [n; 16]),
            pci: pci.map(str::to_owned),
        };
        let gpu = device(Some(1), Some("0000:01:00.0"));
        assert!(gpu.is(&gpu));
        assert!(gpu.is(&device(Some(1), None)) && gpu.is(&device(None, Some("0000:01:00.0"))));
        assert!(device(None, Some("0000:3B:00.0")).is(&device(None, Some("0000:3b:00.0"))));
        assert!(!gpu.is(&device(None, Some("0000:02:00.0"))) && !gpu.is(&device(Some(2), None)));
        // Instances of one GPU.
        assert!(!gpu.is(&device(Some(2), Some("0000:01:00.0"))));
        // What says nothing, such as the CPU, is nothing else.
        assert!(!device(None, None).is(&device(None, None)));
    }
}

//! What a guest's processor decides.

/// The architecture of a guest, by Debian's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit x86, the PC with PCI Express.
    Amd64,
    /// 64-bit ARM, QEMU's `virt` machine.
    Arm64,
}

impl Architecture {
    /// Debian's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The folder in which Debian keeps its libraries.
    pub(crate) fn libraries(self) -> &'static str {
        match self {
            Self::Amd64 => "usr/lib/x86_64-linux-gnu",
            Self::Arm64 => "usr/lib/aarch64-linux-gnu",
        }
    }

    /// Rust's name for it with Linux and glibc.
    pub(crate) fn rust_target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The name in the cache of the part `name` for this architecture.
    pub(crate) fn part(self, name: &str) -> String {
        match self {
            Self::Amd64 => name.to_owned(),
            Self::Arm64 => format!("{name}-arm64"),
        }
    }
}

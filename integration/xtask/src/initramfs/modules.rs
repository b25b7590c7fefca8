//! The drivers a guest gets: the wanted modules and everything they need, unpacked, with modprobe's index.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::modinfo;
use crate::setup::{KernelFiles, Userland};
use crate::shell;

/// Copies modules to `staging` and gives each file with its place in the guest. Of `required` each must exist, as a
/// module or built in; of `optional` those are taken that exist.
pub(crate) fn stage(
    userland: &Userland,
    kernel: &KernelFiles,
    staging: &Path,
    required: &[&str],
    optional: &[&str],
) -> Result<Vec<(PathBuf, String)>> {
    let mut stage = Stage {
        userland,
        available: index(&kernel.modules)?,
        built_in: built_in(&kernel.modules)?,
        root: staging.join("lib/modules").join(&kernel.release),
        taken: Vec::new(),
    };
    fs::create_dir_all(&stage.root)?;
    for name in required {
        stage
            .take(name, Wanted::Required)
            .with_context(|| format!("kernel {}: module {name}", kernel.release))?;
    }
    for name in optional {
        stage.take(name, Wanted::IfThere)?;
    }
    for file in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(kernel.modules.join(file), stage.root.join(file))
            .with_context(|| file.to_owned())?;
    }
    let mut depmod = userland.own_busybox();
    shell::output(depmod.args(["depmod", "-b"]).arg(staging).arg(&kernel.release))?;
    files(staging)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Required,
    IfThere,
}

struct Stage<'a> {
    userland: &'a Userland,
    available: HashMap<String, PathBuf>,
    built_in: Vec<String>,
    root: PathBuf,
    taken: Vec<String>,
}

impl Stage<'_> {
    fn take(&mut self, name: &str, wanted: Wanted) -> Result<()> {
        let name = normal(name);
        if self.taken.contains(&name) || self.built_in.contains(&name) {
            return Ok(());
        }
        let Some(path) = self.available.get(&name).cloned() else {
            match wanted {
                Wanted::Required => bail!("the kernel has no module {name}"),
                Wanted::IfThere => return Ok(()),
            }
        };
        let bytes = self.unpacked(&path)?;
        fs::write(self.root.join(format!("{name}.ko")), &bytes)?;
        self.taken.push(name);
        let needs = modinfo::needs(&bytes);
        for need in needs.depends {
            self.take(&need, Wanted::Required)?;
        }
        for need in needs.before {
            self.take(&need, Wanted::IfThere)?;
        }
        Ok(())
    }

    fn unpacked(&self, path: &Path) -> Result<Vec<u8>> {
        let applet = match path.extension().and_then(|extension| extension.to_str()) {
            Some("ko") => return fs::read(path).with_context(|| path.display().to_string()),
            Some("xz") => "xzcat",
            Some("gz") => "zcat",
            _ => bail!("{}: a compression this program does not know", path.display()),
        };
        Ok(shell::output(self.userland.own_busybox().arg(applet).arg(path))?.stdout)
    }
}

/// The kernel takes `-` and `_` in module names for the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

fn module_name(path: &Path) -> Option<String> {
    let (name, rest) = path.file_name()?.to_str()?.split_once('.')?;
    rest.starts_with("ko").then(|| normal(name))
}

fn index(modules: &Path) -> Result<HashMap<String, PathBuf>> {
    let mut found = HashMap::new();
    let mut folders = vec![modules.join("kernel")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = module_name(&path) {
                found.insert(name, path);
            }
        }
    }
    Ok(found)
}

fn built_in(modules: &Path) -> Result<Vec<String>> {
    let path = modules.join("modules.builtin");
    let list = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(list.lines().filter_map(|line| module_name(Path::new(line))).collect())
}

fn files(staging: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut folders = vec![staging.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let place = path.strip_prefix(staging)?.to_string_lossy().into_owned();
                found.push((path, place));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modules_name_is_the_kernels_whatever_its_file_is_called() {
        assert_eq!(
            module_name(Path::new("kernel/drivers/usb/host/ehci-pci.ko.xz")).as_deref(),
            Some("ehci_pci")
        );
        assert_eq!(module_name(Path::new("kernel/fs/ext4/ext4.ko")).as_deref(), Some("ext4"));
        assert_eq!(module_name(Path::new("modules.order")), None);
    }
}

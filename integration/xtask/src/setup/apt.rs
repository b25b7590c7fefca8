//! apt with a state of its own: the machine's mirror, keys and proxy, but none of its package lists and nothing of its
//! installation. It needs no root, and it does all the resolving and all the checking of signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use super::apt_sources::{self, Mirror};
use super::architecture::Architecture;
use super::cache::Cache;
use crate::{progress, shell};

/// Lists younger than this are not asked for again: one set-up reads them several times.
const FRESH: Duration = Duration::from_secs(600);

/// A set of suites that are resolved together.
pub(crate) struct Archive {
    place: PathBuf,
    name: &'static str,
    architecture: Architecture,
}

/// A package file that apt chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deb {
    pub(crate) package: String,
    file: String,
    bytes: u64,
}

impl Archive {
    /// Debian 12 alone.
    pub(crate) fn bookworm(cache: &Cache, architecture: Architecture) -> Result<Self> {
        Self::open(cache, "bookworm", "bookworm", architecture)
    }

    /// Debian 13 with its backports.
    pub(crate) fn trixie(cache: &Cache, architecture: Architecture) -> Result<Self> {
        Self::open(cache, "trixie", "trixie trixie-backports", architecture)
    }

    fn open(
        cache: &Cache,
        name: &'static str,
        suites: &str,
        architecture: Architecture,
    ) -> Result<Self> {
        let place = cache.path("apt").join(architecture.part(name));
        let archive = Self { place, name, architecture };
        for folder in ["lists/partial", "archives/partial", "none/partial", "sources", "log"] {
            fs::create_dir_all(archive.place.join(folder))?;
        }
        fs::write(archive.place.join("status"), "")?;
        let list = archive.place.join("sources/lab.sources");
        let wanted = sources(&apt_sources::mirror()?, suites);
        if fs::read_to_string(&list).is_ok_and(|list| list != wanted) {
            // Lists of another mirror say nothing about this one.
            fs::remove_file(archive.place.join("updated")).ok();
        }
        fs::write(&list, wanted)?;
        fs::write(archive.place.join("apt.conf"), archive.configuration())?;
        archive.update()?;
        Ok(archive)
    }

    /// Comes after the machine's own configuration, so that its proxies hold and the rest does not.
    fn configuration(&self) -> String {
        let place = self.place.display();
        let architecture = self.architecture.name();
        format!(
            "Dir::State \"{place}\";\nDir::State::lists \"lists\";\nDir::State::status \"{place}/status\";\n\
             Dir::Cache \"{place}\";\nDir::Cache::archives \"archives\";\n\
             Dir::Etc::SourceList \"/dev/null\";\nDir::Etc::SourceParts \"{place}/sources\";\n\
             Dir::Etc::Preferences \"/dev/null\";\nDir::Etc::PreferencesParts \"{place}/none\";\n\
             Dir::Log \"{place}/log\";\n\
             APT::Architecture \"{architecture}\";\n#clear APT::Architectures;\nAPT::Architectures {{ \"{architecture}\"; }};\n\
             APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\nAcquire::Retries \"2\";\nAcquire::http::Timeout \"20\";\n\
             Acquire::https::Timeout \"20\";\nAPT::Update::Error-Mode \"any\";\n\
             #clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
             #clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Pre-Install-Pkgs;\n#clear DPkg::Post-Invoke;\n"
        )
    }

    fn apt_get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-c").arg(self.place.join("apt.conf")).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Reads the mirror's lists, unless that was just done.
    fn update(&self) -> Result<()> {
        let stamp = self.place.join("updated");
        let age = fs::metadata(&stamp)
            .and_then(|file| file.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age < FRESH) {
            return Ok(());
        }
        let bar = progress::spinner(&format!("Debian {}: package lists", self.name));
        let updated = shell::output(self.apt_get().args(["update", "-q"]));
        bar.finish_and_clear();
        updated.map_err(|error| {
            let hint = if error.to_string().contains("NO_PUBKEY") {
                "this machine's keys are older than that release: install a newer debian-archive-keyring"
            } else {
                "is the mirror of this machine's apt sources reachable?"
            };
            error.context(format!("cannot read the package lists of Debian {}; {hint}", self.name))
        })?;
        Ok(fs::write(&stamp, "")?)
    }

    /// The packages that an empty system would need to have `package` of `release` installed, itself among them.
    pub(crate) fn closure(&self, release: &str, packages: &[&str]) -> Result<Vec<Deb>> {
        let mut command = self.apt_get();
        // With an empty archive folder apt lists files that are already here, too.
        command
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}", self.place.join("none").display()));
        command
            .args(["install", "--yes", "--print-uris", "--quiet=2", "--target-release", release])
            .args(packages);
        let listing = shell::output(&mut command)
            .with_context(|| format!("resolving {} of Debian {release}", packages.join(", ")))?;
        Ok(String::from_utf8_lossy(&listing.stdout).lines().filter_map(parse_uri_line).collect())
    }

    /// Downloads `debs` (those of the same version that are here already are kept) and unpacks them into `target`.
    pub(crate) fn unpack(
        &self,
        label: &str,
        release: &str,
        debs: &[Deb],
        target: &Path,
    ) -> Result<()> {
        let archives = self.place.join("archives");
        let total = debs.iter().map(|deb| deb.bytes).sum();
        let missing: Vec<_> = debs.iter().filter(|deb| !deb.is_in(&archives)).collect();
        if !missing.is_empty() {
            let mut command = self.apt_get();
            command
                .args(["download", "--quiet=2", "--target-release", release])
                .current_dir(&archives);
            command
                .args(missing.iter().map(|deb| &deb.package))
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            let bar = progress::bytes(&format!("{label}: downloading"), total);
            let child = command.spawn().with_context(|| shell::cannot_start("apt-get"))?;
            let downloaded =
                watch(child, &bar, || debs.iter().map(|deb| deb.bytes_in(&archives)).sum());
            bar.finish_and_clear();
            downloaded.with_context(|| format!("downloading {label}"))?;
        }
        let bar = progress::steps(&format!("{label}: unpacking"), debs.len() as u64);
        for deb in debs {
            let file = archives.join(&deb.file);
            shell::output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(target))?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        // The unpacked folder is what the cache keeps.
        for deb in debs {
            fs::remove_file(archives.join(&deb.file)).ok();
        }
        Ok(())
    }
}

impl Deb {
    fn bytes_in(&self, folder: &Path) -> u64 {
        let length = |path: PathBuf| fs::metadata(path).map(|file| file.len()).ok();
        length(folder.join(&self.file))
            .or_else(|| length(folder.join("partial").join(&self.file)))
            .unwrap_or(0)
    }

    fn is_in(&self, folder: &Path) -> bool {
        fs::metadata(folder.join(&self.file)).is_ok_and(|file| file.len() == self.bytes)
    }
}

/// Moves the bar while the child works.
fn watch(mut child: Child, bar: &ProgressBar, done: impl Fn() -> u64) -> Result<()> {
    while child.try_wait()?.is_none() {
        bar.set_position(done());
        sleep(Duration::from_millis(100));
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("apt-get failed ({}): {}", output.status, shell::last_lines(&output.stderr));
    }
    Ok(())
}

fn sources(mirror: &Mirror, suites: &str) -> String {
    let signed_by =
        mirror.signed_by.as_ref().map(|value| format!("Signed-By: {value}\n")).unwrap_or_default();
    format!("Types: deb\nURIs: {}\nSuites: {suites}\nComponents: main\n{signed_by}", mirror.uri)
}

/// A line of `--print-uris`: `'URI' FILE BYTES [CHECKSUM]`, where the file is `PACKAGE_VERSION_ARCHITECTURE.deb`.
fn parse_uri_line(line: &str) -> Option<Deb> {
    let mut words = line.strip_prefix('\'')?.split_whitespace().skip(1);
    let file = words.next()?;
    let bytes = words.next()?.parse().ok()?;
    let (package, _) = file.split_once('_')?;
    Some(Deb { package: package.to_owned(), file: file.to_owned(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "'http://mirror.example/debian/pool/main/q/qemu/qemu-system-x86_11.1.3%2bds-1_amd64.deb' \
                        qemu-system-x86_1%3a11.1.3+ds-1_amd64.deb 10377056 SHA256:00";

    #[test]
    fn a_uri_line_gives_package_file_and_size() {
        let deb = parse_uri_line(LINE).unwrap();
        assert_eq!(deb.package, "qemu-system-x86");
        assert_eq!(deb.file, "qemu-system-x86_1%3a11.1.3+ds-1_amd64.deb");
        assert_eq!(deb.bytes, 10_377_056);
    }

    #[test]
    fn other_lines_of_apt_are_no_packages() {
        assert_eq!(parse_uri_line("Reading package lists..."), None);
        assert_eq!(parse_uri_line("'http://mirror.example/x'"), None);
    }

    #[test]
    fn the_machines_key_is_carried_over() {
        let mirror =
            Mirror { uri: "http://mirror.example/debian".into(), signed_by: Some("/k.gpg".into()) };
        let text = sources(&mirror, "trixie trixie-backports");
        assert!(
            text.contains("Suites: trixie trixie-backports\n")
                && text.ends_with("Signed-By: /k.gpg\n"),
            "{text}"
        );
        assert!(!sources(&Mirror { signed_by: None, ..mirror }, "trixie").contains("Signed-By"));
    }
}

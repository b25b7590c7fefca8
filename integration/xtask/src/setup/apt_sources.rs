//! The machine's own apt sources: which Debian mirror it uses, and which keys it trusts for it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// A Debian archive as the machine's sources give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) uri: String,
    /// The value of `Signed-By`, when the machine ties the source to a keyring.
    pub(crate) signed_by: Option<String>,
}

/// One source: a stanza of a `.sources` file or a line of a `.list` file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Source {
    types: Vec<String>,
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
    enabled: bool,
}

/// The mirror that the machine's sources name for Debian's main archive. `$VM_USB_MIRROR` overrides it.
pub(crate) fn mirror() -> Result<Mirror> {
    if let Some(uri) = std::env::var("VM_USB_MIRROR").ok().filter(|uri| !uri.is_empty()) {
        return Ok(Mirror { uri, signed_by: None });
    }
    let sources = read(Path::new("/etc/apt"))?;
    match choose(&sources) {
        Some(mirror) => Ok(mirror),
        None => bail!(
            "the apt sources of this machine name no Debian archive: set VM_USB_MIRROR to one that serves \
             bookworm, trixie and trixie-backports, for example the address your Debian machines use"
        ),
    }
}

/// Debian's names for its releases in the field; a source of another distribution has none of them.
const DEBIAN_SUITES: [&str; 9] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

fn choose(sources: &[Source]) -> Option<Mirror> {
    let is_debian = |source: &&Source| {
        source.enabled
            && source.types.iter().any(|kind| kind == "deb")
            && source.components.iter().any(|component| component == "main")
            && source.suites.iter().any(|suite| DEBIAN_SUITES.contains(&suite.as_str()))
    };
    let source = sources.iter().find(is_debian)?;
    Some(Mirror { uri: source.uris.first()?.clone(), signed_by: source.signed_by.clone() })
}

fn read(etc: &Path) -> Result<Vec<Source>> {
    let mut files = vec![etc.join("sources.list")];
    if let Ok(listing) = fs::read_dir(etc.join("sources.list.d")) {
        let mut parts: Vec<_> = listing.flatten().map(|entry| entry.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let parse = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => parse_stanzas,
            Some("list") => parse_lines,
            _ => continue,
        };
        sources
            .extend(parse(&fs::read_to_string(file).with_context(|| file.display().to_string())?));
    }
    Ok(sources)
}

/// The one-line format: `deb [signed-by=KEYRING] URI SUITE COMPONENT...`.
fn parse_lines(text: &str) -> Vec<Source> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let (kind, rest) = line.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    Some(Source {
        types: vec![kind.to_owned()],
        uris: vec![words.next()?],
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by: signed_by.map(str::to_owned),
        enabled: true,
    })
}

/// The deb822 format: stanzas of `Field: value`, with continuation lines that start with a space.
fn parse_stanzas(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if !fields.is_empty() {
                sources.push(stanza(&std::mem::take(&mut fields)));
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

fn stanza(fields: &[(String, String)]) -> Source {
    let value = |name: &str| {
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    };
    let words = |name: &str| {
        value(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    Source {
        types: words("types"),
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        signed_by: value("signed-by").map(str::to_owned),
        enabled: !matches!(value("enabled"), Some("no" | "false" | "0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANZAS: &str = "\
Types: deb
# a comment inside a stanza
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

    #[test]
    fn the_main_archive_of_stanzas_is_taken_not_the_security_one() {
        let mirror = choose(&parse_stanzas(STANZAS)).unwrap();
        assert_eq!(mirror.uri, "http://mirror.example/debian");
        assert_eq!(
            mirror.signed_by.as_deref(),
            Some("/usr/share/keyrings/debian-archive-keyring.gpg")
        );
    }

    #[test]
    fn a_one_line_source_is_read_with_and_without_options() {
        let text = "# deb http://commented.example/debian bookworm main\n\
                    deb-src http://source.example/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/etc/key.gpg] https://mirror.example/debian stable main # why\n";
        let mirror = choose(&parse_lines(text)).unwrap();
        assert_eq!(
            mirror,
            Mirror {
                uri: "https://mirror.example/debian".into(),
                signed_by: Some("/etc/key.gpg".into())
            }
        );
        let plain = parse_lines("deb http://mirror.example/debian trixie main contrib");
        assert_eq!(
            choose(&plain),
            Some(Mirror { uri: "http://mirror.example/debian".into(), signed_by: None })
        );
    }

    #[test]
    fn another_distribution_or_a_disabled_source_is_no_mirror() {
        assert_eq!(
            choose(&parse_lines("deb http://archive.example/ubuntu noble main universe")),
            None
        );
        let disabled = STANZAS.replace("Types:", "Enabled: no\nTypes:");
        assert_eq!(choose(&parse_stanzas(&disabled)), None);
    }

    #[test]
    fn a_key_written_into_the_stanza_is_kept_whole() {
        let text = "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\n\
                    Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n";
        let key = choose(&parse_stanzas(text)).unwrap().signed_by.unwrap();
        assert!(
            key.starts_with("\n -----BEGIN") && key.ends_with("END PGP PUBLIC KEY BLOCK-----"),
            "{key}"
        );
    }

    #[test]
    fn this_machines_own_sources_can_be_read() {
        // Where there is no apt there is nothing to read, which is not an error either.
        read(Path::new("/etc/apt")).unwrap();
    }
}

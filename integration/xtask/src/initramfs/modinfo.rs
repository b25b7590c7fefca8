//! What a module says it needs, from its own `.modinfo` strings: Debian's packages carry no `modules.dep`.

/// A module's needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Needs {
    /// Modules whose symbols it uses.
    pub(crate) depends: Vec<String>,
    /// Modules it asks to have loaded before it (`softdep=pre:`); names may be aliases that no file has.
    pub(crate) before: Vec<String>,
}

/// The needs of a module file.
pub(crate) fn needs(module: &[u8]) -> Needs {
    let mut needs = Needs::default();
    // `.modinfo` is `key=value` strings that each end in a zero byte.
    for text in module.split(|&byte| byte == 0) {
        if let Some(list) = value(text, "depends=") {
            needs
                .depends
                .extend(list.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        } else if let Some(soft) = value(text, "softdep=") {
            needs.before.extend(before(soft));
        }
    }
    needs
}

fn value<'a>(text: &'a [u8], key: &str) -> Option<&'a str> {
    std::str::from_utf8(text.strip_prefix(key.as_bytes())?).ok()
}

/// `pre: a b post: c` gives a and b.
fn before(soft: &str) -> impl Iterator<Item = String> + '_ {
    let mut is_before = false;
    soft.split_whitespace().filter_map(move |word| match word {
        "pre:" => {
            is_before = true;
            None
        }
        "post:" => {
            is_before = false;
            None
        }
        name => is_before.then(|| name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_found_between_other_bytes() {
        let module = b"\x7fELF\x02\x00\xff\xffmore\0license=GPL\0depends=usbcore,usb-common\0softdep=pre: a b post: c\0";
        let needs = needs(module);
        assert_eq!(needs.depends, ["usbcore", "usb-common"]);
        assert_eq!(needs.before, ["a", "b"]);
    }

    #[test]
    fn a_module_without_needs_has_none() {
        assert_eq!(needs(b"name=x\0depends=\0"), Needs::default());
    }
}

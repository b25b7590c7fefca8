//! Option lists: `kind,key=value,key=value`, where a doubled comma stands for a comma.

use std::str::FromStr;

use thiserror::Error;

/// What is wrong with an option list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// The kind is missing or unknown.
    #[error("\"{found}\" is not one of {known}")]
    Kind {
        /// What was there.
        found: String,
        /// What may be there.
        known: &'static str,
    },
    /// A part has no `=`.
    #[error("\"{0}\" is not of the form key=value")]
    NoValue(String),
    /// A key that means nothing here.
    #[error("unknown option \"{key}\"; there are {known}")]
    Unknown {
        /// The key.
        key: String,
        /// The keys there are.
        known: String,
    },
    /// A key is there twice.
    #[error("{0}= is given twice")]
    Twice(String),
    /// A key that must be there is not.
    #[error("{0}= is missing")]
    Missing(&'static str),
    /// A value of the wrong form.
    #[error("{key}={value}: {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was there.
        value: String,
        /// What may be there.
        expected: &'static str,
    },
}

/// A parsed list. The values are taken out one by one; what remains is unknown.
#[derive(Debug)]
pub struct Options {
    kind: String,
    values: Vec<(String, String)>,
    asked: Vec<&'static str>,
}

impl FromStr for Options {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut parts = split(text).into_iter();
        let kind = parts.next().unwrap_or_default();
        let mut values: Vec<(String, String)> = Vec::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .filter(|(key, value)| !key.is_empty() && !value.is_empty())
                .ok_or_else(|| OptionError::NoValue(part.clone()))?;
            if values.iter().any(|(known, _)| known == key) {
                return Err(OptionError::Twice(key.to_owned()));
            }
            values.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self { kind, values, asked: Vec::new() })
    }
}

fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ',' && letters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

impl Options {
    /// What the list begins with.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Takes the value of `key`.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.asked.push(key);
        let at = self.values.iter().position(|(known, _)| known == key)?;
        Some(self.values.swap_remove(at).1)
    }

    /// Takes the value of `key`.
    ///
    /// # Errors
    /// If it is not there.
    pub fn require(&mut self, key: &'static str) -> Result<String, OptionError> {
        self.take(key).ok_or(OptionError::Missing(key))
    }

    /// Takes the value of `key`, a number from `range`, which `expected` describes.
    ///
    /// # Errors
    /// If it is something else.
    pub fn number<T: FromStr + PartialOrd>(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<T>,
        expected: &'static str,
    ) -> Result<Option<T>, OptionError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(OptionError::Value { key, value, expected }),
        }
    }

    /// Takes the value of `key`, one of `known`, as `expected` says.
    ///
    /// # Errors
    /// If it is something else.
    pub fn choice(
        &mut self,
        key: &'static str,
        known: &[&'static str],
        expected: &'static str,
    ) -> Result<Option<&'static str>, OptionError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match known.iter().find(|known| **known == value) {
            Some(known) => Ok(Some(known)),
            None => Err(OptionError::Value { key, value, expected }),
        }
    }

    /// Takes the value of `key`, `on` or `off`; `default` if it is not there.
    ///
    /// # Errors
    /// If it is something else.
    pub fn switch(&mut self, key: &'static str, default: bool) -> Result<bool, OptionError> {
        match self.take(key) {
            None => Ok(default),
            Some(value) => match &*value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(OptionError::Value { key, value, expected: "say on or off" }),
            },
        }
    }

    /// Ends the list.
    ///
    /// # Errors
    /// If a key was never asked for.
    pub fn finish(mut self) -> Result<(), OptionError> {
        match self.values.pop() {
            None => Ok(()),
            Some((key, _)) => Err(OptionError::Unknown { key, known: self.asked.join(", ") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_a_kind_and_its_values() {
        let mut list: Options = "storage,file=/a,,b/c=d.img,readonly=on,port=3".parse().unwrap();
        assert_eq!(list.kind(), "storage");
        assert_eq!(list.require("file").unwrap(), "/a,b/c=d.img");
        assert!(list.switch("readonly", false).unwrap());
        assert!(list.switch("cached", true).unwrap(), "the default");
        assert_eq!(list.number("port", 1..=15u8, "a port").unwrap(), Some(3));
        assert_eq!(list.require("bus"), Err(OptionError::Missing("bus")));
        list.finish().unwrap();
    }

    #[test]
    fn each_mistake_has_its_own_words() {
        let error = |text: &str| text.parse::<Options>().unwrap_err().to_string();
        assert_eq!(error("ehci,id"), "\"id\" is not of the form key=value");
        assert_eq!(error("ehci,=x"), "\"=x\" is not of the form key=value");
        assert_eq!(error("ehci,id=a,id=b"), "id= is given twice");
        let mut list: Options = "ehci,sokcet=x,ports=99".parse().unwrap();
        assert_eq!(
            list.number("ports", 1..=15u8, "there can be 1 to 15").unwrap_err().to_string(),
            "ports=99: there can be 1 to 15"
        );
        assert_eq!(
            list.finish().unwrap_err().to_string(),
            "unknown option \"sokcet\"; there are ports"
        );
    }
}

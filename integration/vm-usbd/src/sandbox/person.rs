//! Who a server is: a user without privileges, if it was started by one with them.

use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setgroups, setuid};
use thiserror::Error;

use crate::cli::Arguments;

/// Why the server cannot be somebody else.
#[derive(Debug, Error)]
pub enum PersonError {
    /// There is no such user or group.
    #[error("{option}: there is no {what} \"{name}\" here: give a name or a number")]
    Unknown {
        /// Which option.
        option: &'static str,
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Nothing says which group goes with the user.
    #[error("--user {0}: that number has no name here, and so no group: say --group, too")]
    NoGroup(Uid),
    /// The system said no.
    #[error("{0}: {1}: only root can become somebody else; leave it out otherwise")]
    Refused(&'static str, #[source] nix::Error),
}

/// Becomes the user and group of `arguments`, in all threads, with the other groups of that user and no
/// capability. Whatever is opened from now on is opened as that user, and sockets belong to it.
///
/// # Errors
/// If there is no such user or group, or this process may not become them.
pub fn change(arguments: &Arguments) -> Result<(), PersonError> {
    let user = arguments.user.as_deref().map(user).transpose()?;
    let group = arguments.group.as_deref().map(group).transpose()?;
    let own = user.as_ref().and_then(|(_, found)| found.as_ref()).map(|user| user.gid);
    if let (Some((uid, None)), None) = (&user, group) {
        return Err(PersonError::NoGroup(*uid));
    }
    if let Some(gid) = group.or(own) {
        // A user's other groups are known by its name only.
        let named = user.as_ref().and_then(|(_, found)| found.as_ref());
        let name = named.and_then(|user| std::ffi::CString::new(&*user.name).ok());
        let groups = name.map_or_else(|| setgroups(&[gid]), |name| initgroups(&name, gid));
        groups.and_then(|()| setgid(gid)).map_err(|error| {
            let option = if group.is_some() { "--group" } else { "--user" };
            PersonError::Refused(option, error)
        })?;
    }
    if let Some((uid, _)) = user {
        setuid(uid).map_err(|error| PersonError::Refused("--user", error))?;
    }
    Ok(())
}

/// A user by name or number; one without a name may have a number.
fn user(name: &str) -> Result<(Uid, Option<User>), PersonError> {
    let unknown = || PersonError::Unknown { option: "--user", what: "user", name: name.to_owned() };
    if let Some(found) = User::from_name(name).ok().flatten() {
        return Ok((found.uid, Some(found)));
    }
    let uid = Uid::from_raw(name.parse().map_err(|_| unknown())?);
    Ok((uid, User::from_uid(uid).ok().flatten()))
}

fn group(name: &str) -> Result<Gid, PersonError> {
    let unknown =
        || PersonError::Unknown { option: "--group", what: "group", name: name.to_owned() };
    if let Some(found) = Group::from_name(name).ok().flatten() {
        return Ok(found.gid);
    }
    Ok(Gid::from_raw(name.parse().map_err(|_| unknown())?))
}

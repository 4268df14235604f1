//! Restriction to granted files, by landlock.

use std::{io, path::PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

use super::Access;

/// Open files and directories of grants.
#[derive(Debug, Default)]
pub(super) struct Held {
    _paths: Vec<PathFd>,
}

/// Restricts the calling thread to `files`. Paths that do not exist are ignored. A kernel that knows landlock in an older
/// version restricts what that version can.
///
/// # Errors
/// If the kernel does not support landlock.
pub(super) fn restrict(files: &[(PathBuf, Access)]) -> io::Result<Held> {
    let refused = |error: RulesetError| io::Error::other(error.to_string());
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI_KNOWN))
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(refused)?;
    let mut held = Held::default();
    for (path, access) in files {
        let (Ok(open), Ok(metadata)) = (PathFd::new(path), path.metadata()) else {
            continue;
        };
        let mut rights = rights(*access);
        if !metadata.is_dir() {
            rights &= AccessFs::from_file(ABI_KNOWN);
        }
        ruleset = ruleset
            .add_rule(PathBeneath::new(&open, rights))
            .map_err(refused)?;
        held._paths.push(open);
    }
    let status = ruleset.restrict_self().map_err(refused)?;
    match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(held),
        RulesetStatus::NotEnforced => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadDir | AccessFs::ReadFile;
    let set = read | AccessFs::WriteFile | AccessFs::Truncate;
    match access {
        Access::Change => {
            set | AccessFs::MakeDir
                | AccessFs::MakeReg
                | AccessFs::MakeSock
                | AccessFs::MakeSym
                | AccessFs::Refer
                | AccessFs::RemoveDir
                | AccessFs::RemoveFile
        }
        Access::Device => set | AccessFs::IoctlDev,
        Access::Read => read,
        Access::Run => read | AccessFs::Execute,
        Access::Set => set,
    }
}

/// Newest version whose rights this module knows: with it came `IoctlDev`.
const ABI_KNOWN: ABI = ABI::V5;

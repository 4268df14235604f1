//! The macro [`policies!`], which generates types and lists from the table of policies.
//!
//! One line of the table in `sched.rs` is
//!
//! ```text
//! "name" => file::Type {},                // a policy without keys: Type implements Scheduler and Default
//! "name" => file::Type(Settings),         // with keys in the configuration
//! "name" => file::Type(Settings<L>),      // with keys, some of which name links
//! ```
//!
//! and generates the module `file`, a variant `Type` of [`AnyScheduler`](super::AnyScheduler) and of
//! [`Policy`](super::Policy), the name and keys that configurations and scenarios accept, the lists for messages, and
//! an entry in the tests that run every policy.
//!
//! `Settings` derives `Clone, Debug, PartialEq, Eq, Deserialize` with `#[serde(default, deny_unknown_fields)]`,
//! implements `Default`, and has `KEYS`, the names of its fields, and `scheduler(&self) -> Type`. Settings with links
//! also have `map_links` and `links` ([`SingleSettings`](super::SingleSettings) is the shortest example).

/// Generates modules, enums and lists from the table of policies. The rules that begin with `@` expand single
/// entries.
macro_rules! policies {
    ($($name:literal => $module:ident::$Type:ident $keys:tt,)+) => {
        $(
            pub mod $module;
            pub use self::$module::$Type;
        )+

        /// Any policy. The policies of this crate are dispatched by enum, so that the packet path has no virtual
        /// call.
        #[derive(Debug)]
        pub enum AnyScheduler {
            $(
                #[doc = concat!("See [`", stringify!($Type), "`].")]
                $Type(Box<$Type>),
            )+
            /// A scheduler from another crate: one virtual call per packet.
            Own(Box<dyn Scheduler>),
        }

        impl AnyScheduler {
            fn inner(&self) -> &dyn Scheduler {
                match self {
                    $(Self::$Type(policy) => &**policy,)+
                    Self::Own(policy) => &**policy,
                }
            }

            fn inner_mut(&mut self) -> &mut dyn Scheduler {
                match self {
                    $(Self::$Type(policy) => &mut **policy,)+
                    Self::Own(policy) => &mut **policy,
                }
            }

            fn pick_by_policy(&mut self, now: Instant, paths: &[PathView], packet: &PacketInfo) -> Pick {
                match self {
                    $(Self::$Type(policy) => policy.pick(now, paths, packet),)+
                    Self::Own(policy) => own::checked(policy.pick(now, paths, packet), paths, packet),
                }
            }
        }

        /// A policy with its settings, as the configuration names it: `policy = "…"` and the keys of that policy
        /// beside it.
        ///
        /// `L` is the type of link names: text in a configuration file (`Policy<String>`), ids in the engine
        /// ([`map_links`](Self::map_links) converts one into the other). Keys that the policy does not know are
        /// errors.
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(tag = "policy", deny_unknown_fields)]
        pub enum Policy<L = PathId> {
            $(
                #[doc = concat!("See [`", stringify!($Type), "`].")]
                #[serde(rename = $name)]
                $Type $keys,
            )+
            /// A scheduler from another crate; it has no name in a configuration file.
            #[serde(skip)]
            Own(OwnPolicy),
        }

        impl<L> Policy<L> {
            /// The names of all policies, sorted, for error messages and lists.
            pub const NAMES: &[&str] = &[$($name),+];

            /// The name of this policy in the configuration.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$Type { .. } => $name,)+
                    Self::Own(own) => own.name(),
                }
            }

            /// Returns the policy called `name`, with every key at its default.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(policies!(@default $Type $keys)),)+
                    _ => None,
                }
            }

            /// Returns the keys, except `policy`, of the policy called `name`; none if there is no such policy.
            #[must_use]
            pub fn keys_of(name: &str) -> &'static [&'static str] {
                match name {
                    $($name => policies!(@keys $keys),)+
                    _ => &[],
                }
            }

            /// The links that the policy names, each with its key.
            #[must_use]
            pub fn links(&self) -> Vec<(&'static str, &L)> {
                match self {
                    $(policies!(@pattern $Type $keys _settings) => policies!(@links $keys _settings),)+
                    Self::Own(_) => Vec::new(),
                }
            }

            /// Returns this policy with every link replaced by the result of `map`; links without a result get the
            /// policy's default.
            pub fn map_links<M>(self, map: impl FnMut(L) -> Option<M>) -> Policy<M> {
                match self {
                    $(policies!(@pattern $Type $keys settings) => policies!(@map $Type $keys settings map),)+
                    Self::Own(own) => Policy::Own(own),
                }
            }
        }

        impl Policy {
            /// Creates a scheduler for this policy that has not placed any packet yet.
            #[must_use]
            pub fn build(&self) -> AnyScheduler {
                match self {
                    $(policies!(@pattern $Type $keys settings) => {
                        AnyScheduler::$Type(Box::new(policies!(@build $Type $keys settings)))
                    })+
                    Self::Own(own) => AnyScheduler::Own(own.build()),
                }
            }
        }
    };

    (@pattern $Type:ident {} $settings:ident) => { Self::$Type {} };
    (@pattern $Type:ident ($($keys:tt)+) $settings:ident) => { Self::$Type($settings) };

    (@default $Type:ident {}) => { Self::$Type {} };
    (@default $Type:ident ($Settings:ty)) => { Self::$Type(<$Settings>::default()) };

    (@keys {}) => { &[] };
    (@keys ($Settings:ty)) => { <$Settings>::KEYS };

    (@links ($Settings:ident<L>) $settings:ident) => { $settings.links() };
    (@links $keys:tt $settings:ident) => { Vec::new() };

    (@map $Type:ident {} $settings:ident $map:ident) => { Policy::$Type {} };
    (@map $Type:ident ($Settings:ident<L>) $settings:ident $map:ident) => {
        Policy::$Type($settings.map_links($map))
    };
    (@map $Type:ident ($Settings:ty) $settings:ident $map:ident) => { Policy::$Type($settings) };

    (@build $Type:ident {} $settings:ident) => { $Type::default() };
    (@build $Type:ident ($Settings:ty) $settings:ident) => { $settings.scheduler() };
}

pub(super) use policies;

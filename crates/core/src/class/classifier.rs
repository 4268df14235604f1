//! Finds a packet's class.

use core::time::Duration;
use std::collections::BTreeMap;

use super::{
    Class, Duplicate, FlowQuestion, MAX_CLASSES, Match, Service,
    apps::Apps,
    flows::{Flows, Known},
};
use crate::{
    flows::FlowId,
    mark::{ClassId, Found},
    packet::PacketView,
    time::Instant,
    units::{Bitrate, Bytes},
};

/// The classes of one end, their counters, and their credit for copies.
#[derive(Debug, Default)]
pub struct Classifier {
    classes: Vec<Served>,
    /// Id of the first class; the ids of the other classes follow it.
    first: u8,
    /// Ids of former classes, which waiting packets still carry, with the index of the present class of the same name.
    former: BTreeMap<u8, usize>,
    /// Index of the class for voice.
    voice: Option<usize>,
    flows: Flows,
    apps: Apps,
}

#[derive(Debug)]
struct Served {
    class: Class,
    counts: ClassCounts,
    /// Current credit for copies, in hundredths of a byte.
    credit: u64,
}

/// Counters of a class at the sending end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Number of packets, without copies.
    pub packets: u64,
    /// Number of bytes of packets, without copies.
    pub bytes: Bytes,
    /// Number of copies.
    pub copies: u64,
    /// Number of bytes of the copies.
    pub copied_bytes: Bytes,
    /// Number of packets dropped because they could no longer arrive in time.
    pub expired: u64,
    /// Number of packets dropped because the class is blocked, or because none of its links could carry them.
    pub dropped: u64,
}

impl Classifier {
    /// Returns a classifier with these classes in this order. If there are [`MAX_CLASSES`] or more, the excess is
    /// ignored, so that one id is left for voice. With `recognises_voice`, voice packets that match none of the classes
    /// get a separate class.
    #[must_use]
    pub fn new(classes: Vec<Class>, recognises_voice: bool) -> Self {
        let mut classes = classes;
        classes.truncate(MAX_CLASSES - 1);
        let voice = recognises_voice.then_some(classes.len());
        classes.extend(voice.map(|_| voice_class()));
        let apps = Apps::new(&classes);
        let served = |class| Served {
            class,
            counts: ClassCounts::default(),
            credit: 0,
        };
        Self {
            classes: classes.into_iter().map(served).collect(),
            first: 0,
            former: BTreeMap::new(),
            voice,
            flows: Flows::default(),
            apps,
        }
    }

    /// Returns this classifier as the successor of `earlier`, whose ids waiting packets carry. Such a packet belongs to
    /// the class of the same name, or to no class. Ids are reused after 256 ids, which is after at least
    /// 256 / [`MAX_CLASSES`] changes of the classes. The programs of flows stay known if the present classes name
    /// them.
    #[must_use]
    pub fn succeeding(mut self, earlier: &Self) -> Self {
        let step = |index: usize| u8::try_from(index).unwrap_or(u8::MAX);
        let ids = (0..earlier.classes.len())
            .map(|index| (earlier.first.wrapping_add(step(index)), index));
        let former = earlier.former.iter().map(|(id, index)| (*id, *index));
        for (id, index) in former.chain(ids) {
            let name = &earlier.classes[index].class.name;
            let mut classes = self.classes.iter();
            if let Some(now) = classes.position(|served| served.class.name == *name) {
                self.former.insert(id, now);
            }
        }
        self.first = earlier.first.wrapping_add(step(earlier.classes.len()));
        for index in 0..self.classes.len() {
            self.former.remove(&self.first.wrapping_add(step(index)));
        }
        self.apps.take_over(&earlier.apps);
        self
    }

    /// Returns the index of a class; `None` if the class no longer exists.
    fn index(&self, id: ClassId) -> Option<usize> {
        let index = usize::from(id.0.wrapping_sub(self.first));
        if index < self.classes.len() {
            return Some(index);
        }
        self.former.get(&id.0).copied()
    }

    fn served(&self, id: ClassId) -> Option<&Served> {
        self.classes.get(self.index(id)?)
    }

    fn served_mut(&mut self, id: ClassId) -> Option<&mut Served> {
        let index = self.index(id)?;
        self.classes.get_mut(index)
    }

    /// Returns the present id of a class, which may be a former id of the class; `None` if the class no longer exists.
    #[must_use]
    pub fn present(&self, id: ClassId) -> Option<ClassId> {
        self.id_at(self.index(id)?)
    }

    fn id_at(&self, index: usize) -> Option<ClassId> {
        let index = u8::try_from(index).ok()?;
        Some(ClassId(self.first.wrapping_add(index)))
    }

    /// Frees the tables of flows. The programs of flows are forgotten.
    pub fn release_memory(&mut self) {
        self.flows.release_memory();
        self.apps.release_memory();
    }

    /// Returns the class of a packet of a flow; `None` if it matches no class. Must be called once for each packet.
    pub fn find(&mut self, now: Instant, packet: &PacketView<'_>, flow: FlowId) -> Option<Found> {
        if self.classes.is_empty() {
            return None;
        }
        let len = packet.bytes().len();
        let known = self.flows.count(now, flow, len);
        let voice = self.voice.filter(|_| is_voice(packet, known));
        let configured = &self.classes[..self.voice.unwrap_or(self.classes.len())];
        let (apps, mut program) = (&mut self.apps, None);
        let mut is_of_app = |app: &str| {
            let program = *program.get_or_insert_with(|| apps.program(now, packet, flow));
            program.is_some_and(|program| apps.has_name(program, app))
        };
        let mut classes = configured.iter().map(|served| &served.class.matches);
        let fits = classes.position(|matches| {
            matches.fits(packet, known) && matches.app.as_deref().is_none_or(&mut is_of_app)
        });
        let fits = fits.or(voice)?;
        let served = &mut self.classes[fits];
        served.counts.packets += 1;
        served.counts.bytes += Bytes::of_len(len);
        let earned = len as u64 * u64::from(served.class.service.share_percent);
        served.credit = (served.credit + earned).min(BURST_CENTIBYTES.max(earned));
        Some(Found {
            id: self.id_at(fits)?,
            is_small: known.rate() < SMALL,
        })
    }

    /// Returns the service of a class.
    #[must_use]
    pub fn service(&self, id: ClassId) -> Option<&Service> {
        let served = self.served(id)?;
        Some(&served.class.service)
    }

    /// Whether packets of a class are restricted to certain links.
    #[must_use]
    pub fn is_pinned(&self, id: ClassId) -> bool {
        self.service(id)
            .is_some_and(|service| !service.links.is_empty())
    }

    /// Whether a class is the built-in class for voice.
    #[must_use]
    pub fn is_voice(&self, id: ClassId) -> bool {
        self.voice.is_some() && self.index(id) == self.voice
    }

    /// Whether a copy of `len` bytes may be sent.
    #[must_use]
    pub fn may_copy(&self, id: ClassId, len: usize) -> bool {
        let served = self.served(id);
        served.is_some_and(|served| served.credit >= len as u64 * 100)
    }

    /// Records that a copy of `len` bytes was sent.
    pub fn on_copied(&mut self, id: ClassId, len: usize) {
        if let Some(served) = self.served_mut(id) {
            served.credit = served.credit.saturating_sub(len as u64 * 100);
            served.counts.copies += 1;
            served.counts.copied_bytes += Bytes::of_len(len);
        }
    }

    /// Records that a packet was dropped because it could no longer arrive in time.
    pub fn on_expired(&mut self, id: ClassId) {
        if let Some(served) = self.served_mut(id) {
            served.counts.expired += 1;
        }
    }

    /// Records that a packet was dropped because its class is blocked, or because none of its links could carry it.
    pub fn on_dropped(&mut self, id: ClassId) {
        if let Some(served) = self.served_mut(id) {
            served.counts.dropped += 1;
        }
    }

    /// Returns the next question for the host; see [`FlowQuestion`].
    pub fn poll_question(&mut self) -> Option<FlowQuestion> {
        self.apps.poll_question()
    }

    /// Takes the host's answer to a question: the name of the program, or `None` if no program of this host has opened
    /// the flow.
    pub fn answer(&mut self, question: &FlowQuestion, program: Option<&str>) {
        self.apps.answer(question, program);
    }

    /// Takes the host's answer that the program cannot be known yet. The question is asked again.
    pub fn delay(&mut self, question: &FlowQuestion) {
        self.apps.delay(question);
    }

    /// Returns the name and the counters of every class.
    pub fn counts(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        let classes = self.classes.iter();
        classes.map(|served| (served.class.name.as_str(), served.counts))
    }
}

impl Match {
    /// Whether a packet meets all conditions except the one on its program.
    fn fits(&self, packet: &PacketView<'_>, flow: Known) -> bool {
        let is_of = |nets: &[ipnet::IpNet], address: core::net::IpAddr| {
            nets.is_empty() || nets.iter().any(|net| net.contains(&address))
        };
        let has_port = |ports: [u16; 2]| {
            let mut ranges = self.ports.iter();
            ranges.any(|range| ports.iter().any(|port| range.contains(port)))
        };
        (self.dscp.is_empty() || self.dscp.contains(&packet.dscp()))
            && (self.protocol.is_none() || self.protocol == packet.protocol())
            && (self.ports.is_empty() || packet.ports().is_some_and(has_port))
            && is_of(&self.from, packet.source())
            && is_of(&self.to, packet.destination())
            && self.max_size.is_none_or(|max| packet.bytes().len() <= max)
            && self.max_rate.is_none_or(|max| flow.rate() <= max)
    }
}

/// Whether a packet is voice, by its code point or by the traffic pattern of its flow.
fn is_voice(packet: &PacketView<'_>, flow: Known) -> bool {
    let is_marked = VOICE_DSCP.contains(&packet.dscp());
    packet.protocol() == Some(UDP) && (is_marked || flow.is_like_voice())
}

/// Returns the built-in class for voice.
fn voice_class() -> Class {
    Class {
        name: "voice".to_owned(),
        matches: Match::default(),
        service: Service {
            deadline: Some(VOICE_DEADLINE),
            is_ordered: false,
            duplicate: Duplicate::Auto,
            share_percent: 100,
            ..Service::default()
        },
    }
}

/// Rate below which a flow is small, so that sending it twice costs little.
const SMALL: Bitrate = Bitrate::from_mbps(2);
/// Maximum credit of a class for copies: 64 KiB.
const BURST_CENTIBYTES: u64 = 64 * 1024 * 100;
/// Code points of voice: EF (RFC 3246) and VOICE-ADMIT (RFC 5865).
const VOICE_DSCP: [u8; 2] = [46, 44];
/// Deadline of voice; later packets are useless in a conversation (ITU-T G.114).
const VOICE_DEADLINE: Duration = Duration::from_millis(400);
const UDP: u8 = 17;

//! The connections of a socket: so many, and whoever has been idle longest makes room for another.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most connections of a socket at a time: a user's front end needs one, a script another.
pub const MOST_CONNECTIONS: usize = 16;

/// The connections there are.
#[derive(Clone, Debug, Default)]
pub struct Crowd(Arc<Mutex<Members>>);

#[derive(Debug, Default)]
struct Members {
    list: Vec<Member>,
    /// How often a connection came or became idle.
    turns: u64,
}

#[derive(Debug)]
struct Member {
    stream: Arc<UnixStream>,
    activity: Activity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// Nothing that was asked is under way, since this turn.
    Idle(u64),
    /// Something is carried out.
    Busy,
}

/// What became of a connection that came.
#[derive(Debug)]
pub enum Admission {
    /// There was room.
    Placed(Place),
    /// There was none, and another was closed for it.
    InsteadOf(Place),
    /// There was none, and all the others are busy.
    TurnedAway,
}

impl Crowd {
    /// Takes a connection in, and closes the one that has been idle longest if there are too many.
    pub fn admit(&self, stream: UnixStream) -> Admission {
        let mut members = self.lock();
        let room = members.list.len() < MOST_CONNECTIONS;
        if !room {
            let idle = members.list.iter().enumerate().filter_map(|(at, member)| {
                let Activity::Idle(since) = member.activity else { return None };
                Some((since, at))
            });
            let Some((_, at)) = idle.min() else { return Admission::TurnedAway };
            // Its thread reads the end, or cannot write, and goes.
            let _ = members.list.swap_remove(at).stream.shutdown(Shutdown::Both);
        }
        let stream = Arc::new(stream);
        let activity = Activity::Idle(members.turn());
        members.list.push(Member { stream: stream.clone(), activity });
        drop(members);
        let place = Place { crowd: self.clone(), stream };
        if room { Admission::Placed(place) } else { Admission::InsteadOf(place) }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn position(&self, stream: &Arc<UnixStream>) -> Option<usize> {
        self.list.iter().position(|member| Arc::ptr_eq(&member.stream, stream))
    }
}

/// A connection's place among the [`MOST_CONNECTIONS`].
#[derive(Debug)]
pub struct Place {
    crowd: Crowd,
    stream: Arc<UnixStream>,
}

impl Place {
    /// The connection.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Carries out what the connection asked for, undisturbed; `None` if it had to make room before
    /// that began.
    pub fn carry_out<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        self.set(|_| Activity::Busy)?;
        let result = work();
        self.set(|members| Activity::Idle(members.turn()));
        Some(result)
    }

    fn set(&self, activity: impl FnOnce(&mut Members) -> Activity) -> Option<()> {
        let mut members = self.crowd.lock();
        let at = members.position(&self.stream)?;
        members.list[at].activity = activity(&mut members);
        Some(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut members = self.crowd.lock();
        if let Some(at) = members.position(&self.stream) {
            members.list.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A connection that was let in, and its other end.
    struct Guest {
        place: Place,
        client: UnixStream,
    }

    impl Guest {
        fn was_closed(&mut self) -> bool {
            self.client.set_nonblocking(true).unwrap();
            self.client.read(&mut [0]).is_ok_and(|len| len == 0)
        }
    }

    /// Whether somebody had to go for the guest.
    fn enter(crowd: &Crowd) -> Option<(Guest, bool)> {
        let (ours, client) = UnixStream::pair().unwrap();
        match crowd.admit(ours) {
            Admission::Placed(place) => Some((Guest { place, client }, false)),
            Admission::InsteadOf(place) => Some((Guest { place, client }, true)),
            Admission::TurnedAway => None,
        }
    }

    /// So many guests, for whom nobody had to go.
    fn crowd_of(count: usize) -> (Crowd, Vec<Guest>) {
        let crowd = Crowd::default();
        let enter = |_| {
            let (guest, instead) = enter(&crowd).unwrap();
            assert!(!instead, "there is room");
            guest
        };
        let guests = (0..count).map(enter).collect();
        (crowd, guests)
    }

    fn closed(guests: &mut [Guest]) -> Vec<usize> {
        (0..guests.len()).filter(|at| guests[*at].was_closed()).collect()
    }

    #[test]
    fn up_to_the_limit_everybody_has_a_place() {
        let (_crowd, mut guests) = crowd_of(MOST_CONNECTIONS);
        assert!(closed(&mut guests).is_empty());
        for guest in &guests {
            assert_eq!(guest.place.carry_out(|| 5), Some(5));
        }
    }

    #[test]
    fn one_more_takes_the_place_of_the_one_that_has_been_idle_longest() {
        let (crowd, mut guests) = crowd_of(MOST_CONNECTIONS);
        guests[0].place.carry_out(|| ()).unwrap();
        guests[1].place.carry_out(|| ()).unwrap();
        let (_first, instead) = enter(&crowd).unwrap();
        assert!(instead);
        assert_eq!(closed(&mut guests), [2]);
        let (_second, instead) = enter(&crowd).unwrap();
        assert!(instead);
        assert_eq!(closed(&mut guests), [2, 3]);
        assert_eq!(guests[2].place.carry_out(|| ()), None, "what it asked for is not done");
    }

    #[test]
    fn the_busy_stay_and_if_all_are_the_new_one_goes() {
        fn occupy(crowd: &Crowd, guests: &mut [Guest]) {
            match guests {
                [] => assert!(enter(crowd).is_none(), "all are busy"),
                [guest, others @ ..] => {
                    guest.place.carry_out(|| occupy(crowd, others)).unwrap();
                    assert!(!guest.was_closed());
                }
            }
        }
        let (crowd, mut guests) = crowd_of(MOST_CONNECTIONS);
        occupy(&crowd, &mut guests);
        let (_new, instead) = enter(&crowd).unwrap();
        assert!(instead, "nobody is busy any more");
        assert_eq!(closed(&mut guests), [MOST_CONNECTIONS - 1], "it was done first");
    }

    #[test]
    fn one_that_leaves_makes_room() {
        let (crowd, mut guests) = crowd_of(MOST_CONNECTIONS);
        guests.pop();
        let (_new, instead) = enter(&crowd).unwrap();
        assert!(!instead);
        assert!(closed(&mut guests).is_empty());
    }
}

//! Shards of an outbox: stable numbers, fair shares, no shard in two hands.

use mamparo_core::message::shards::{Plan, SHARDS, Shard, fair_share, is_fair, plan, shard_of};
use mamparo_core::time::WallTime;
use proptest::prelude::*;

const NOW: WallTime = WallTime::from_unix_millis(100);
const LATER: WallTime = WallTime::from_unix_millis(200);

fn shards(owners: &[Option<&str>], lease_until: WallTime) -> Vec<Shard> {
    let shard = |(shard, owner): (u16, &Option<&str>)| Shard {
        shard,
        owner: owner.map(str::to_owned),
        epoch: 1,
        lease_until,
    };
    (0..).zip(owners).map(shard).collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn who_has_its_share_and_no_more_has_nothing_to_decide() {
    let held = |me: &str, alive: &[&str]| {
        let fair: Vec<usize> = (0..=16).filter(|held| is_fair(me, *held, &names(alive))).collect();
        fair
    };
    assert_eq!(held("a", &[]), [16], "alone");
    assert_eq!(held("a", &["a", "b"]), [8]);
    // Sixteen among three: the first by name has one more.
    assert_eq!(["a", "b", "c"].map(|me| held(me, &["c", "a", "b"])), [[6], [5], [5]]);
}

/// Stored rows depend on these numbers.
#[test]
fn the_shard_of_a_key_never_changes() {
    let of = |key: &str| shard_of(key, "id");
    assert_eq!(["o-1", "o-2", "o-3", "pedido", "日本"].map(of), [1, 8, 7, 6, 4]);
    assert_eq!(shard_of("", "o-1"), of("o-1"), "without a key the id decides");
}

#[test]
fn shards_are_spread_evenly() {
    let mut counts = [0_u32; SHARDS as usize];
    (0..16_000).for_each(|n| counts[usize::from(shard_of(&format!("order-{n}"), ""))] += 1);
    assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
}

#[test]
fn a_relay_alone_takes_everything_and_gives_half_to_a_second_one() {
    let free = shards(&[None; 16], NOW);
    let all: Vec<u16> = (0..16).collect();
    assert_eq!(plan("a", &free, &[], NOW), Plan { take: all.clone(), ..Plan::default() });
    let held = shards(&[Some("a"); 16], LATER);
    let surplus: Vec<u16> = (8..16).collect();
    let expected = Plan { renew: all, surplus, ..Plan::default() };
    assert_eq!(plan("a", &held, &names(&["a", "b"]), NOW), expected);
    assert_eq!(plan("b", &held, &names(&["a", "b"]), NOW), Plan::default(), "not yet given");
}

#[test]
fn a_lease_that_is_over_belongs_to_nobody_not_even_to_its_old_owner() {
    let over = shards(&[Some("a"); 16], NOW);
    let all: Vec<u16> = (0..16).collect();
    for me in ["a", "b"] {
        assert_eq!(plan(me, &over, &[], NOW), Plan { take: all.clone(), ..Plan::default() });
    }
}

#[test]
fn more_relays_than_shards_leave_some_waiting() {
    assert_eq!((0..20).map(|place| fair_share(place, 20)).sum::<usize>(), 16);
    assert_eq!(fair_share(0, 0), 16, "nobody known is one relay: this one");
}

proptest! {
    /// Whatever the start, relays that come and go end with every shard in one hand and even shares.
    #[test]
    fn relays_settle_on_even_shares(
        owners in prop::collection::vec(prop::option::of(0_usize..6), 16), relays in 1_usize..8
    ) {
        let every = ["a", "b", "c", "d", "e", "f", "g"];
        let alive = names(&every[..relays]);
        let mut state: Vec<Shard> = (0..16).zip(&owners).map(|(shard, owner)| Shard {
            shard, owner: owner.map(|n| every[n].to_owned()), epoch: 0,
            // The leases of the dead are over.
            lease_until: if owner.is_some_and(|n| n < relays) { LATER } else { NOW },
        }).collect();
        for _ in 0..3 {
            for me in &alive {
                let plan = plan(me, &state, &alive, NOW);
                for shard in &mut state {
                    if plan.take.contains(&shard.shard) {
                        prop_assert!(shard.owner.is_none() || shard.lease_until <= NOW);
                        (shard.owner, shard.lease_until) = (Some(me.clone()), LATER);
                        shard.epoch += 1;
                    }
                    if plan.surplus.contains(&shard.shard) {
                        shard.owner = None;
                    }
                }
            }
        }
        let count = |me: &String| state.iter().filter(|s| s.owner.as_ref() == Some(me)).count();
        let counts: Vec<usize> = alive.iter().map(count).collect();
        prop_assert_eq!(counts.iter().sum::<usize>(), 16);
        prop_assert!(counts.iter().max().zip(counts.iter().min()).is_some_and(|(a, b)| a - b <= 1));
    }
}

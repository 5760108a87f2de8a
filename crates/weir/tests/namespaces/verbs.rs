//! Verbs beside signals and pages of long lists, as an operator uses them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use weir_io::process;

use super::gateways::{GCM, Gateways, Side, families, pair, policies, ports};
use super::testbed::{Testbed, run, until};
use weir::testing::daemon::program;

const ROUTES: &str = "[[route]]\nprefix = \"10.9.0.0/16\"\nvia = \"10.2.0.2\"\n\
                      [[route]]\nprefix = \"10.9.1.0/24\"\nvia = \"10.2.0.2\"\n";

#[test]
fn routes_for_an_address_are_those_that_lead_there_the_longest_last() {
    let Some(testbed) = Testbed::new("routes_for_an_address_are_those_that_lead_there_the_longest_last")
    else {
        return;
    };
    let router = testbed.start(&testbed.config("af_packet", ROUTES));
    let prefixes = |args: &[&str]| -> Vec<String> {
        let text = router.told(&[&["show", "routes"], args].concat());
        let rows = text.lines().skip(1).filter(|line| !line.starts_with('#'));
        rows.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    };
    assert_eq!(prefixes(&["for", "10.9.1.7"]), ["10.9.0.0/16", "10.9.1.0/24"]);
    assert_eq!(prefixes(&["for", "10.9.2.7"]), ["10.9.0.0/16"]);
    assert!(prefixes(&["for", "203.0.113.1"]).is_empty());
    let all = prefixes(&[]);
    assert_eq!(prefixes(&["--from", "2", "--limit", "3"]), all[1..4]);
    for (args, said) in [
        (&["show", "routes", "for", "lan"][..], "expected an address"),
        (&["show", "routes", "10.9.1.7"], "expected `for ADDRESS`"),
        (&["show", "ports", "for", "10.9.1.7"], "write `weir show routes`"),
        (&["show", "ports", "--limit", "1"], "show one of them"),
        (&["show", "routes", "--match", "x"], "routes have `for ADDRESS`"),
        (&["show", "neighbors", "--from", "0"], "write --from 1"),
    ] {
        let output = router.ask(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(said), "{args:?}: {stderr}");
    }
}

#[test]
fn neighbors_are_shown_by_what_they_match_and_in_pages() {
    let Some(testbed) = Testbed::new("neighbors_are_shown_by_what_they_match_and_in_pages") else { return };
    let neighbor = |n: u32| {
        format!(
            "[[neighbor]]\nport = \"right\"\naddress = \"10.2.0.{n}\"\nmac = \"02:00:00:00:00:{n:02x}\"\n"
        )
    };
    let router = testbed.start(&testbed.config("af_packet", &(100..110).map(neighbor).collect::<String>()));
    let addresses = |args: &[&str]| -> Vec<String> {
        let text = router.told(&[&["show", "neighbors"], args].concat());
        let rows = text.lines().skip(1).filter(|line| !line.starts_with('#'));
        rows.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
    };
    let all = addresses(&["--match", "10.2.0.10"]);
    assert_eq!(all.len(), 10);
    assert_eq!(addresses(&["--match", "02:00:00:00:00:69"]), ["10.2.0.105"]);
    assert_eq!(addresses(&["--match", "10.2.0.10", "--from", "3", "--limit", "2"]), all[2..4]);
    let page = router.told(&["show", "neighbors", "--match", "10.2.0.10", "--limit", "4"]);
    assert!(page.ends_with("# more follow: --from 5\n"), "{page}");
    let last = router.told(&["show", "neighbors", "--match", "10.2.0.10", "--from", "9", "--limit", "4"]);
    assert!(!last.contains("more follow"), "{last}");
    assert!(addresses(&["--match", "nowhere"]).is_empty());
    assert_eq!(router.told(&["show", "sa", "--match", "x"]), "no sa is like that\n");
}

#[test]
fn reload_answers_with_what_changed_and_stop_returns_when_it_has_ended() {
    let Some(testbed) = Testbed::new("reload_answers_with_what_changed_and_stop_returns_when_it_has_ended")
    else {
        return;
    };
    let mut router = testbed.start(&testbed.config("af_packet", ""));
    assert_eq!(router.told(&["reload"]), "nothing to change\n");
    testbed.file("router.toml", &testbed.config("af_packet", ROUTES));
    let told = router.told(&["reload"]);
    assert!(told.contains("+ route 10.9.0.0/16") && told.contains("2 changes applied"), "{told}");
    testbed.file("router.toml", "nonsense");
    let refused = router.ask(&["reload"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("router.toml:1"));
    assert!(router.told(&["show", "routes"]).contains("10.9.0.0/16"), "a wrong file changes nothing");
    router.told(&["stop"]);
    assert!(!router.socket.exists());
    assert!(router.wait(), "{}", router.log());
}

#[test]
fn what_runs_is_shown_as_a_file_with_changes_that_no_file_has() {
    let test = "what_runs_is_shown_as_a_file_with_changes_that_no_file_has";
    let Some(testbed) = Gateways::new(test) else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let text =
        |side| ports(side, "af_packet") + &pair(side, "a", 0x1000, families()[0], GCM) + &policies(side, "a");
    let [west, _east] = testbed.start(text);
    assert_eq!(west.told(&["config", "show", "--toml"]), text(Side::West), "the file's own text");
    let add = "policy add outside guests --local 10.7.0.0/16 --remote 10.8.0.0/16 --action discard --before family-1";
    west.told(&add.split(' ').collect::<Vec<_>>());
    west.told(&["policy", "remove", "outside", "family-0"]);
    let shown = west.told(&["config", "show"]);
    assert!(shown.contains("# ") && shown.contains("+ spd outside: policy guests as number 2"), "{shown}");
    assert!(shown.contains("- spd outside: policy family-0"), "{shown}");
    // It is what runs: applying it changes nothing, and then there is nothing that no file has.
    let next = testbed.next(Side::West, &shown).display().to_string();
    assert!(west.told(&["apply", "--dry-run", &next]).ends_with("nothing to change\n"));
    west.told(&["apply", &next]);
    assert_eq!(west.told(&["config", "show"]), shown);
    assert!(west.told(&["config", "show", "--json"]).contains("\"unsaved\": []"));
}

#[test]
fn monitor_tells_of_a_link_that_goes_and_comes() {
    let Some(testbed) = Testbed::new("monitor_tells_of_a_link_that_goes_and_comes") else { return };
    let router = testbed.start(&testbed.config("af_packet", ""));
    until("both ports are up", || {
        let ports = router.json("ports");
        ports.as_array()?.iter().all(|p| p["up"] == true).then_some(())
    });
    let mut command = Command::new(program());
    command.arg("--socket").arg(&router.socket).args(["monitor", "--every", "0.05"]).stdout(Stdio::piped());
    let mut monitor = process::dies_with_starter(&mut command).spawn().expect("weir starts");
    let mut lines = BufReader::new(monitor.stdout.take().expect("piped")).lines().map_while(Result::ok);
    // Set down again and again, because nobody says when it has looked first.
    let mut flip = 0;
    let flapping = std::thread::scope(|scope| {
        let heard = scope.spawn(|| {
            let mut of_left = lines.by_ref().filter(|line| line.contains("~ port left: "));
            let down = of_left.find(|line| line.contains("up, af_packet, mtu 1500 -> down"));
            let up = of_left.find(|line| line.contains("-> up"));
            (down, up)
        });
        while !heard.is_finished() && flip < 100 {
            let state = if flip % 2 == 0 { "down" } else { "up" };
            run(&format!("ip -n {} link set r0 {state}", testbed.router));
            std::thread::sleep(std::time::Duration::from_millis(200));
            flip += 1;
        }
        if !heard.is_finished() {
            // It ends its reader.
            let _ = monitor.kill();
        }
        heard.join().expect("no panic")
    });
    let _ = monitor.kill();
    let _ = monitor.wait();
    assert!(flapping.0.is_some() && flapping.1.is_some(), "{flapping:?}");
}

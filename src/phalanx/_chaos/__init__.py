"""Faults for a running app, on purpose: `phalanx chaos`.

`faults` says what breaks when, `victims` what it hits, `fault_history` what came of
it; all of them are pure. `hosts` breaks and mends things, `tries` follows a replica that is started
again, `experiment` puts it together.
"""

/* The handshake of docs/wire.md, sections 2.2 and 2.3, between one client and one gateway, with an attacker on the network.
 *
 * What is modelled: initiations with time, association id and source address; cookies; what the gateway remembers and forgets;
 * sessions that wait for their first datagram; restarts of both ends; a client whose clock goes back; a change of the cookie
 * secret. Cryptography is perfect: nobody but the client makes an initiation, and nobody but a client that still has the
 * ephemeral key reads its response. The attacker records every initiation, holds back or drops any datagram, and sends copies
 * from the client's address (blindly) or from its own.
 *
 * Tables are one entry long where the protocol's have 64 or 16384, so that forgetting is reached in few steps.
 *
 * Variants, by -D: NO_TIME, NO_START, NO_COOKIE, NO_PROOF, NO_ASSOCIATION, NO_CONFIRMATION leave out one defence each;
 * KEY_HOLDER gives the attacker the gateway's public key, so that it can prove its own address with a copy.
 * check.sh says which property each must break.
 */

#ifndef INITIATIONS
#define INITIATIONS 3
#endif

#define NONE 255
#define CLIENT 0        /* addresses */
#define ATTACKER 1

/* Each initiation: when it says it was made, by which run of the client, and whether the client still has its keys. */
byte time[INITIATIONS];
byte association[INITIATIONS];
bool has_keys[INITIATIONS];
byte made = 0;
byte answered[INITIATIONS];
/* How often one was answered that the client did not send on its way just then: a copy. */
bool was_delivered[INITIATIONS];

/* The client. */
byte clock = 1;             /* the true time, which the gateway's clock shows */
byte behind = 0;            /* how far the client's clock is behind */
byte client_run = 1;        /* its association id */
byte client_current = NONE; /* the initiation whose session it uses */

/* The gateway. */
byte newest = 0;            /* greatest time answered */
byte start = 0;             /* when it was started */
byte recent = NONE;         /* the last initiation answered */
byte seen = NONE;           /* the last initiation read with a proof, under the present cookie secret */
byte waiting = NONE;        /* answered, and no datagram has come under it */
byte current = NONE;        /* the session it sends under */
byte known_run = 0;         /* the association whose numbers it counts on from */

byte gateway_restarts = 0, client_restarts = 0, secrets = 0, clocks_back = 0;
bool is_over = false;       /* the attacker has ended */

/* Answers the initiation `i`. */
inline answer(i) {
	answered[i]++;
	if
	:: time[i] > newest -> newest = time[i]
	:: else
	fi;
	recent = i;
#ifdef NO_CONFIRMATION
	current = i;
	known_run = association[i];
#else
	waiting = i;
#endif
	/* A copy is never answered, whoever sends it from where. */
	assert(answered[i] <= 1);
}

bit is_fresh;

/* The gateway reads the initiation `i`; `proved`: it carries a good mac2 for the address it came from.
 * `asks` becomes true if it asks for a proof. */
inline read(i, proved, asks) {
	asks = false;
	is_fresh = (time[i] > newest && time[i] >= start);
#ifdef NO_START
	is_fresh = (time[i] > newest);
#endif
#ifdef NO_TIME
	is_fresh = true;
#endif
	if
	:: proved && seen == i -> skip		/* step 2 */
	:: else ->
		if
		:: proved -> seen = i
		:: else
		fi;
		if
		:: recent == i -> skip		/* step 7 */
#ifndef NO_PROOF
		:: recent != i && !proved && (!is_fresh || waiting != NONE) -> asks = true	/* steps 8, 10 */
		:: recent != i && (proved || (is_fresh && waiting == NONE)) -> answer(i)
#else
		:: recent != i && !is_fresh -> skip
		:: recent != i && is_fresh -> answer(i)
#endif
		fi
	fi
}

/* The first datagram under the session of `i` comes to the gateway: only who has the keys can send it. */
inline confirm(i) {
	assert(has_keys[i]);
	if
	:: waiting == i -> waiting = NONE; current = i;
#ifdef NO_ASSOCIATION
		if
		:: known_run == 0 -> known_run = association[i]
		:: else			/* counts on, whoever this is */
		fi;
#else
		known_run = association[i];
#endif
	:: else
	fi
}

/* The client begins a handshake. */
inline make(i) {
	i = made;
	time[i] = clock - behind;
	association[i] = client_run;
	has_keys[i] = true;
	made++;
	clock++;
}

/* The client reads the response to `i` and sends its first datagram, which arrives. */
inline finish(i) {
	if
	:: has_keys[i] && answered[i] > 0 ->
		client_current = i;
		confirm(i)
	:: else
	fi
}

/* What must hold at any time. */
inline check() {
	/* The gateway sends under no keys that a copy brought up: the client used them, or has restarted since. */
	assert(current == NONE || !has_keys[current] || client_current != NONE);
	/* It counts the numbers of the run of the client that it talks to. */
	assert(current == NONE || current != client_current || known_run == association[current])
}

active proctype world() {
	byte i;
	bool asks;

	do
	/* The client begins a handshake, and the network passes it on, or keeps it. */
	:: made < INITIATIONS - 1 ->
		atomic {
			make(i);
			if
			:: read(i, false, asks);	/* passed on */
				if
				:: asks ->		/* the cookie reply reaches the client, which sends it again with a proof */
#ifndef NO_COOKIE
					read(i, true, asks)
#else
					skip
#endif
				:: !asks
				fi;
				if
				:: finish(i)		/* the response gets through */
				:: skip			/* or not, or only later */
				fi
			:: skip				/* held back, and recorded */
			fi;
			check()
		}
	/* The attacker sends a copy from the client's address; it sees no cookie for that. */
	:: made > 0 ->
		atomic {
			select(i : 0 .. INITIATIONS - 1);
			if
			:: i < made -> read(i, false, asks)
			:: else
			fi;
			check()
		}
#ifdef KEY_HOLDER
	/* The attacker asks for a cookie with a copy from its own address, and sends the copy with the proof. */
	:: made > 0 ->
		atomic {
			select(i : 0 .. INITIATIONS - 1);
			if
			:: i < made -> read(i, true, asks)
			:: else
			fi;
			check()
		}
#endif
	/* A response that was held back comes late. */
	:: made > 0 ->
		atomic {
			select(i : 0 .. INITIATIONS - 1);
			if
			:: i < made && client_current != i -> finish(i)
			:: else
			fi;
			check()
		}
	/* The client restarts: new association, no keys. */
	:: client_restarts < 1 ->
		atomic {
			client_restarts++;
			client_run++;
			client_current = NONE;
			i = 0;
			do
			:: i < INITIATIONS -> has_keys[i] = false; i++
			:: else -> break
			od
		}
	/* The client's clock goes back. */
	:: clocks_back < 1 && clock > 2 -> atomic { clocks_back++; behind = 2 }
	/* The gateway restarts: it forgets everything but what its clock shows. */
	:: gateway_restarts < 1 ->
		atomic {
			gateway_restarts++;
			newest = 0;
			start = clock;
			clock++;
			recent = NONE;
			seen = NONE;
			waiting = NONE;
			current = NONE;
			known_run = 0
		}
	/* The cookie secret changes twice: no cookie of before is good, and what was read with one is forgotten. */
	:: secrets < 1 -> atomic { secrets++; seen = NONE }
	/* The attacker ends. */
	:: break
	od;

	/* One handshake without an attacker brings the tunnel up, whatever was before. */
	atomic {
		is_over = true;
		make(i);
		read(i, false, asks);
#ifndef NO_COOKIE
		if
		:: asks -> read(i, true, asks)
		:: else
		fi;
#endif
		finish(i);
		check();
		assert(current == i && client_current == i);
		assert(known_run == client_run)
	}
}

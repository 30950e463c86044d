#!/bin/bash
# An agent for the time of each job, where no service can be installed. In slurm.conf:
#
#   Prolog=/etc/slurm/computeflow-agent.sh
#   Epilog=/etc/slurm/computeflow-agent.sh
#
# Slurm runs both as root on every node of a job (SLURM_SCRIPT_CONTEXT says which one it is). The agent
# runs as the job's user, who may read the recordings. It must not fail a job: the exit code is 0.
# With nodes that are shared by jobs each job's agent ships the runs of its own user.
set -u
context=${SLURM_SCRIPT_CONTEXT:-prolog_slurmd}
state=/run/computeflow-agent/${SLURM_JOB_ID:?not in Slurm}
pid_file=$state/pid

start() {
    install -d -m 755 /run/computeflow-agent
    install -d -m 700 -o "$SLURM_JOB_USER" "$state"
    if [ -r /etc/computeflow/token ]; then
        install -m 400 -o "$SLURM_JOB_USER" /etc/computeflow/token "$state/token"
    fi
    cd "$state" || return
    # setsid: Slurm kills what a prolog leaves in its session
    setsid --fork runuser -u "$SLURM_JOB_USER" -- /bin/sh -c '
        ulimit -v 2097152
        exec nice -n 10 computeflow agent --collector "@COLLECTOR@" --runs "@RUNS@" \
            --token-file "$0/token" --ca /etc/computeflow/ca.pem --state "$0" --quiet \
            >"$0/log" 2>&1 & echo $! >"$0/pid"' "$state"
}

stop() {
    if [ -r "$pid_file" ]; then
        kill -TERM "$(cat "$pid_file")" 2>/dev/null  # it ships what came last, then ends
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            kill -0 "$(cat "$pid_file")" 2>/dev/null || break
            sleep 0.5
        done
    fi
    rm -rf -- "$state"
}

case $context in
prolog*) start ;;
epilog*) stop ;;
esac
exit 0

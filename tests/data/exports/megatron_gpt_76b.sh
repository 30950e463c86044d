#!/bin/bash
#SBATCH -t 0:30:00 --exclusive --mem=0 --overcommit --ntasks-per-node=8
# Facts of NVIDIA/Megatron-LM d98e8a64, examples/academic_paper_scripts/sc21: two rows of
# run_table_1.sh, with its CONFIG.sh, SBATCH.sh and SRUN.sh in one file.
MODEL_SIZE=76B

if [ ${MODEL_SIZE} == "1.7B" ]; then
    TP=1
    PP=1
    MBS=16
    GBS=512
    NLS=24
    HS=2304
    NAH=24
    DDP=torch
    NNODES=4
    MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform "
elif [ ${MODEL_SIZE} == "76B" ]; then
    TP=8
    PP=4
    MBS=2
    GBS=1792
    NLS=60
    HS=10240
    NAH=80
    DDP=local
    NNODES=128
    MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 5"
else
    echo "Invalid configuration"
    exit 1
fi

export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
	--micro-batch-size ${MBS} \
	--global-batch-size ${GBS} \
        --num-layers ${NLS} \
        --hidden-size ${HS} \
        --num-attention-heads ${NAH} \
	--DDP-impl ${DDP} \
        --seq-length 2048 \
        --max-position-embeddings 2048 \
        --train-iters 500 \
        --fp16 \
	--loss-scale 8192 "

CMD="python -u ${MEGATRON_CODE_DIR}/pretrain_gpt.py ${MEGATRON_PARAMS}"
DATETIME=`date +'date_%y-%m-%d'`
srun -l --nodes=${NNODES} \
     --container-image "nvcr.io#nvidia/pytorch:20.12-py3" \
     --output=logs/%x_%j_$DATETIME.log sh -c "${CMD}"

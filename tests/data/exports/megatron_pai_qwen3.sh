#!/bin/bash
set -e
# Facts of alibaba/Pai-Megatron-Patch a098ca5a, examples/qwen3/run_mcore_qwen3.sh: a script whose sizes
# are its arguments.
ENV=$1
if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"

MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$7
PR=$9
TP=${10}
PP=${11}
DO=${16}
AC=${19}

if [ $MODEL_SIZE = 0.6B ]; then
    NUM_LAYERS=28
    HIDDEN_SIZE=1024
    tie_option=""
elif [ $MODEL_SIZE = 8B ]; then
    NUM_LAYERS=36
    HIDDEN_SIZE=4096
    tie_option=" \
            --untie-embeddings-and-output-weights \
            "
fi
if [ -z ${MP_VP} ]; then
    vp_option=""
else
    vp_option=" \
        --num-layers-per-virtual-pipeline-stage ${MP_VP}"
fi
if [ -z ${MP_PP0_LAYERS} ];then
    uneven_split_option=""
elif [ ${PP} -gt 1 ]; then
    uneven_split_option=" \
        --decoder-first-pipeline-num-layers ${MP_PP0_LAYERS}
    "
fi
TP_COMM_OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
if [ $AC = full ]; then
    activation_checkpoint_options=" \
            --recompute-method uniform \
            --recompute-num-layers 1 \
            --recompute-granularity full"
elif [ $AC = sel ]; then
    activation_checkpoint_options=" \
        --recompute-activations"
fi
if [ $PR = fp16 ]; then
    pr_options=" \
            --fp16 \
            --apply-query-key-layer-scaling"
elif [ $PR = bf16 ]; then
    pr_options=" \
        --bf16"
elif [ $PR = fp8 ]; then
    pr_options=" \
        --bf16 \
        --fp8-format hybrid \
        --fp8-recipe blockwise"
fi
if [ $DO = true ]; then
    do_option=" \
            --use-distributed-optimizer"
fi
megatron_options="  \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --seq-length ${SEQ_LEN} \
        --tensor-model-parallel-size ${TP} \
        --pipeline-model-parallel-size ${PP} \
        --context-parallel-size 1 \
        --padded-vocab-size 151936 \
        --swiglu \
        --qk-layernorm \
        --kv-channels 128
        "
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_qwen.py
 ${megatron_options} ${pr_options} ${activation_checkpoint_options} \
 ${do_option} ${vp_option} ${uneven_split_option} ${tie_option}"
echo ${run_cmd}
eval ${run_cmd}

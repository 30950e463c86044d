#!/bin/bash
# Facts of NVIDIA/Megatron-LM d98e8a64, examples/llama/train_llama3_8b_h100_fp8.sh: its settings that
# bear on a layout, as a script of the same make (variables, arrays, a condition, comments).
GPUS_PER_NODE=8
NUM_NODES=1
TP_SIZE=1
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=128
export SEQ_LENGTH=8192
DTYPE="fp8"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes ${NUM_NODES}
    --master_addr ${MASTER_ADDR:-localhost}
)
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --position-embedding-type rope
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
    )
fi
# --pipeline-model-parallel-size 2
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${DTYPE_ARGS[@]} \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --global-batch-size $GLOBAL_BATCH_SIZE --bf16 \
    --tensor-model-parallel-size $TP_SIZE \
    --context-parallel-size 1 \
    --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --vocab-size 128256 --lr 0.00015 --save-interval 1000 --data-path $DATA_ARG

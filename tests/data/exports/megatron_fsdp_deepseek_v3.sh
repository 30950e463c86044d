#!/bin/bash
# Facts of NVIDIA/Megatron-LM d98e8a64, examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh: a script
# that hands another to sbatch.
OUTPUT_PATH=${OUTPUT_PATH:-"your_own_output_path"}
USE_MEGATRON_FSDP=${USE_MEGATRON_FSDP:-1}
SHARDING_STRATEGY=${SHARDING_STRATEGY:-"optim_grads_params"}
PROFILE=${PROFILE:-0}
TP=${TP:-1}
EP=${EP:-8}
MBS=${MBS:-4}
GBS=${GBS:-2048}
COMMENT=${COMMENT:-""}

PRETRAIN_ARGS=(
    --tensor-model-parallel-size ${TP}
    --expert-model-parallel-size ${EP}
    --expert-tensor-parallel-size 1
    --context-parallel-size 1
    --use-distributed-optimizer
    --sequence-parallel
    --disable-bias-linear
    --micro-batch-size ${MBS}
    --global-batch-size ${GBS}
    --train-samples 585937500
    --recompute-granularity selective
    --recompute-modules mlp moe mla_up_proj layernorm
    --seq-length 4096
    --tokenizer-type HuggingFaceTokenizer
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --swiglu
    --normalization RMSNorm
    --multi-latent-attention
    --num-experts 256
    --moe-layer-freq [0]*3+[1]*58
    --moe-ffn-hidden-size 2048
    --moe-router-topk 8
    --mtp-num-layers 1
    --save-interval 100
    --bf16
)
if [ "${USE_MEGATRON_FSDP}" = 1 ]; then
    unset CUDA_DEVICE_MAX_CONNECTIONS
    PRETRAIN_ARGS=(
        "${PRETRAIN_ARGS[@]}"
        --use-megatron-fsdp
        --data-parallel-sharding-strategy ${SHARDING_STRATEGY}
        --use-distributed-optimizer
    )
fi
if [ "${PROFILE}" = 1 ]; then
    PROFILE_CMD="nsys profile --sample=none \
        -o ${OUTPUT_PATH}/nsys/TP${TP}EP${EP}-${COMMENT}"
    PRETRAIN_ARGS=("${PRETRAIN_ARGS[@]}" --profile --micro-batch-size 1)
else
    PROFILE_CMD=""
fi
TRAINING_CMD="
cd ${MEGATRON_PATH};
${PROFILE_CMD} python ${MEGATRON_PATH}/pretrain_gpt.py ${PRETRAIN_ARGS[@]}"

mkdir -p ${OUTPUT_PATH}/logs || {
    echo "Error: Failed to create ${OUTPUT_PATH}/logs"
    exit 1
}
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=your_own_num_nodes

srun \
    --mpi=pmix -l \
    bash -x -c "${TRAINING_CMD}" 2>&1 | tee ${OUTPUT_PATH}/\${SLURM_JOB_ID}.log
EOF
